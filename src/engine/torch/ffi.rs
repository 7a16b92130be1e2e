//! The one home of unsafe code: loading libtorch's CUDA half at run time.
//!
//! The linker drops `libtorch_cuda` because no symbol of it is used, and a start on the CPU is the faster for it. Once loaded, it
//! registers itself with libtorch.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::error::Error as _;

/// Loads `libtorch_cuda.so` for as long as the process lives. To be called before libtorch is first used: it looks for CUDA
/// once.
///
/// # Errors
/// A library that is not there, or lacks NVIDIA's.
pub fn load_cuda() -> Result<()> {
    const NAME: &str = "libtorch_cuda.so";
    // SAFETY: loading runs the library's initialisers. They are libtorch's own, of the build that this program is linked with
    // (the same rpath finds both), and an ordinary `import torch` runs them in the same way. No symbol is taken from it.
    let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| {
        // The loader's own words, which name the library that is not there, are the error's source.
        let why = e.source().map_or_else(|| e.to_string(), ToString::to_string);
        Error::engine(NAME, format!("{why}; a CUDA device needs libtorch with all of its own dependencies"))
    })?;
    // Never unloaded: libtorch keeps pointers into it.
    std::mem::forget(library);
    Ok(())
}
