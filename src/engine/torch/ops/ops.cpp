// All of it as one unit: libtorch's headers take longer to compile than what is here, and are read once so.
#include "products.cpp"

#include "causal.cpp"
#include "head.cpp"
#include "layers.cpp"
#include "decode.cpp"
