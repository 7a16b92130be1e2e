//! Where the engine runs: which device, on how many threads.

use crate::engine::spec::Dtype;
use crate::engine::torch::ffi;
use crate::error::{Error, Result};
use tch::{Cuda, Device, Kind};

/// The device that `--device` names: `cpu`, `cuda` or `cuda:N`.
///
/// # Errors
/// Any other text.
pub fn parse(text: &str) -> Result<Device> {
    let cuda = |number: &str| number.parse::<u8>().ok().map(|n| Device::Cuda(usize::from(n)));
    let device = match text {
        "cpu" => Some(Device::Cpu),
        "cuda" => Some(Device::Cuda(0)),
        _ => text.strip_prefix("cuda:").and_then(cuda),
    };
    device.ok_or_else(|| Error::config("device", text, "it must be cpu, cuda or cuda:N, N from 0"))
}

/// Makes `device` usable. To be called once, before anything else of the engine.
///
/// # Errors
/// CUDA asked for where it is not, or has fewer devices.
pub fn open(device: Device) -> Result<()> {
    let Device::Cuda(number) = device else {
        ffi::keep_memory();
        return Ok(());
    };
    let refuse = |why: String| Error::config("device", format!("cuda:{number}"), why);
    ffi::load_cuda().map_err(|e| refuse(e.to_string()))?;
    let count = usize::try_from(Cuda::device_count()).unwrap_or(0);
    if !Cuda::is_available() || count == 0 {
        return Err(refuse("libtorch finds no CUDA device; cpu works".to_owned()));
    }
    if number >= count {
        return Err(refuse(format!("there are {count} CUDA devices, numbered from 0")));
    }
    Ok(())
}

/// libtorch's name of a type.
pub fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::Fp32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    }
}

/// How many threads libtorch's operations on the calling thread use. To be called on each thread that computes.
///
/// A fresh thread's number is set at its first look at it, over whatever was set before; so look first.
pub fn set_threads(threads: u16) {
    ffi::begin_thread();
    tch::get_num_threads();
    tch::set_num_threads(i32::from(threads.max(1)));
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::{Arc, Barrier, LazyLock};
    use tch::Tensor;

    /// Where the tests of the engine run: `TIDEGATE_TEST_DEVICE`, `cpu` without it. For another one libtorch's CUDA half must be there
    /// before the first test is: `LD_PRELOAD=libtorch_cuda.so`.
    pub fn device() -> Device {
        static DEVICE: LazyLock<Device> = LazyLock::new(|| {
            let device = parse(&std::env::var("TIDEGATE_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())).unwrap();
            open(device).unwrap();
            device
        });
        *DEVICE
    }

    #[test]
    fn each_thread_gets_what_it_asks_for() {
        // All ask before any computes: a number that is not the thread's own would be the last one asked for.
        let all_asked = Arc::new(Barrier::new(4));
        let ask = |threads: u16| {
            let all_asked = all_asked.clone();
            std::thread::spawn(move || {
                set_threads(threads);
                all_asked.wait();
                let x = Tensor::ones([256, 256], (Kind::Float, Device::Cpu));
                let _ = x.matmul(&x);
                (tch::get_num_threads(), ffi::threads_of_a_loop())
            })
        };
        let got = [1, 2, 1, 2].map(ask).map(|worker| worker.join().unwrap());
        let of_a_loop = |threads| if env!("TIDEGATE_OPS_THREADS") == "one" { 1 } else { threads };
        assert_eq!(got, [1, 2, 1, 2].map(|threads| (threads, of_a_loop(i64::from(threads)))));
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(parse("cpu").unwrap(), Device::Cpu);
        assert_eq!(parse("cuda").unwrap(), Device::Cuda(0));
        assert_eq!(parse("cuda:3").unwrap(), Device::Cuda(3));
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
            let message = parse(wrong).unwrap_err().to_string();
            assert_eq!(message, format!("device = {wrong}: it must be cpu, cuda or cuda:N, N from 0"));
        }
    }
}
