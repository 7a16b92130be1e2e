//! Files of older writers and of other tools.
