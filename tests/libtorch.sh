# Sourced: finds libtorch 2.11 with CUDA (LIBTORCH names it, or python3 can `import torch`) and has programs load it.
libtorch=${LIBTORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)} || libtorch=
if ! [ -e "$libtorch/lib/libtorch_cuda.so" ]; then
  echo "no libtorch with CUDA: set LIBTORCH to a libtorch 2.11, or have torch 2.11 in python3" >&2
  exit 4
fi
export LD_LIBRARY_PATH="$libtorch/lib:${LD_LIBRARY_PATH:-}"
