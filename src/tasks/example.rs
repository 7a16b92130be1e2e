//! What every generated task gives: a prompt, its worked answer, and how often that slips.

use super::draw::Draw;

/// A generated prompt and how it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    pub prompt: String,
    /// The full answer, steps included, without an end-of-sequence token.
    pub completion: String,
    /// The final answer alone.
    pub answer: String,
}

/// How often the worked answers of a task make its typical mistake, for warm starts that imitate an imperfect teacher. Prompts and
/// answers stay right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slips {
    /// Share of the places where the mistake can be made, 0..=1.
    pub rate: f64,
}

impl Slips {
    pub const NONE: Slips = Slips { rate: 0.0 };

    /// Whether it happens here. A rate of 0 draws nothing.
    pub fn happens(self, draw: &mut Draw) -> bool {
        self.rate > 0.0 && draw.unit() < self.rate
    }
}
