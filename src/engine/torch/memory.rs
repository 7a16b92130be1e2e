//! Memory that ran out: told apart from everything else that libtorch may say.

use crate::error::Error;

/// How an allocator of libtorch says it: of the host, of a CUDA device, and of C++ itself.
const SAID: [&str; 3] = ["can't allocate memory", "out of memory", "std::bad_alloc"];

/// Whether the error is that there was no memory for a tensor: less work at once may fit.
pub fn ran_out(error: &Error) -> bool {
    matches!(error, Error::Engine { reason, .. } if SAID.iter().any(|said| reason.contains(said)))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    /// What libtorch says of 16 TB.
    pub fn refusal() -> Error {
        Tensor::f_zeros([1 << 42], (Kind::Float, Device::Cpu)).unwrap_err().into()
    }

    /// Catches a libtorch that says it in other words, and any other error that is taken for it.
    #[test]
    fn the_allocators_words_are_known() {
        let refusal = refusal();
        assert!(ran_out(&refusal), "{refusal}");
        assert!(ran_out(&Error::engine("libtorch", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")));
        let shapes = Tensor::from_slice(&[1.0, 2.0]).f_view([3]).unwrap_err();
        assert!(!ran_out(&shapes.into()) && !ran_out(&Error::file("f", "out of memory")));
    }
}
