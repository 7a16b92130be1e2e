//! `seal`: makes each step's rows durable, in step order.

use crate::fault::Fault;
use crate::record::SealedStep;

/// Where sealed steps go.
pub trait Log {
    /// Makes the step durable and visible, all or nothing.
    ///
    /// # Errors
    /// A disk that refuses.
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault>;
}
