//! What `[curriculum]` must hold.

use crate::error::{Error, Result};
use crate::kernel::curriculum::Curriculum;

/// Beyond this a rate tells of a policy that is long gone, and its outcomes of memory.
const MOST: usize = 1024;

/// Numbers that mean what they say.
///
/// # Errors
/// Names the first key that is wrong.
pub(super) fn check(curriculum: &Curriculum) -> Result<()> {
    let Curriculum { target, width, window, explore, .. } = *curriculum;
    for (key, value, right, what) in [
        ("target", target, (0.0..=1.0).contains(&target), "a number from 0 to 1"),
        ("width", width, width > 0.0, "a number above 0; inf draws without regard to success"),
        ("explore", explore, (0.0..=1.0).contains(&explore), "a number from 0 to 1"),
    ] {
        if !right {
            return Err(Error::config(format!("curriculum.{key}"), value, what));
        }
    }
    if !(1..=MOST).contains(&window) {
        return Err(Error::config("curriculum.window", window, format!("from 1 to {MOST} groups")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::kernel::curriculum::Draws;
    use crate::spec::Spec;

    fn spec(set: &str) -> crate::error::Result<Spec> {
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(start, &[format!("curriculum.{set}")])
    }

    /// Catches a number that would mean something else than was meant, and a NaN that no comparison sees.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        for (set, message) in [
            ("kind=easy", "kind = \"easy\": `easy` is not allowed; allowed: `off`, `success`"),
            ("target=1.1", "target = 1.1: a number from 0 to 1"),
            ("target=nan", "target = NaN: a number from 0 to 1"),
            ("width=0", "width = 0: a number above 0; inf draws without regard to success"),
            ("width=nan", "width = NaN: a number above 0; inf draws without regard to success"),
            ("window=0", "window = 0: from 1 to 1024 groups"),
            ("window=1025", "window = 1025: from 1 to 1024 groups"),
            ("explore=1.5", "explore = 1.5: a number from 0 to 1"),
            ("explore=nan", "explore = NaN: a number from 0 to 1"),
        ] {
            assert_eq!(spec(set).unwrap_err().to_string(), format!("curriculum.{message}"));
        }
    }

    /// Catches a key that is lost on its way into the run's `spec.toml` or back, and a window that is kept where nothing is drawn by it.
    #[test]
    fn what_is_set_is_written_and_read_again() {
        for set in ["kind=success", "target=0.3", "width=inf", "window=32", "explore=1.0"] {
            let found = spec(set).unwrap();
            assert_ne!(found.curriculum, Default::default(), "{set}");
            assert_eq!(Spec::from_text(&found.to_text(), &[]).unwrap(), found);
        }
        let found = spec("kind=success").unwrap();
        assert_eq!((found.curriculum.kind, found.plan().window), (Draws::Success, 8));
        assert_eq!(spec("window=5").unwrap().plan().window, 0);
    }
}
