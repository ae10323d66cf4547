//! What an engine has learned of inputs by their shapes.

use foldhash::{HashMap, HashMapExt};

/// So many shapes are remembered; one more, and all are met anew.
const SHAPES_MAX: usize = 1024;

/// Shapes of inputs that came so far.
#[derive(Debug)]
pub(super) struct Met(HashMap<Vec<Vec<usize>>, Seen>);

#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    ran: bool,
    unlike: bool,
}

impl Met {
    pub(super) fn new() -> Met {
        Met(HashMap::new())
    }

    /// A run of them was begun.
    pub(super) fn ran(&mut self, shapes: &[Vec<usize>]) {
        self.seen(shapes).ran = true;
    }

    /// Outputs of theirs are of other shapes than the model file says, or are not.
    pub(super) fn unlike(&mut self, shapes: &[Vec<usize>], unlike: bool) {
        self.seen(shapes).unlike = unlike;
    }

    /// Whether outputs of theirs are of other shapes than the model file says.
    pub(super) fn is_unlike(&self, shapes: &[Vec<usize>]) -> bool {
        self.0.get(shapes).is_some_and(|seen| seen.unlike)
    }

    /// Whether others ran, and these never did.
    pub(super) fn only_others_ran(&self, shapes: &[Vec<usize>]) -> bool {
        !self.0.get(shapes).is_some_and(|seen| seen.ran) && self.0.values().any(|seen| seen.ran)
    }

    fn seen(&mut self, shapes: &[Vec<usize>]) -> &mut Seen {
        if self.0.len() >= SHAPES_MAX && !self.0.contains_key(shapes) {
            self.0.clear();
        }
        self.0.entry(shapes.to_vec()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(side: usize) -> Vec<Vec<usize>> {
        vec![vec![1, 3, side, side]]
    }

    #[test]
    fn what_is_learned_of_some_shapes_says_nothing_of_others() {
        let mut met = Met::new();
        assert!(!met.only_others_ran(&side(8)), "nothing ran at all");
        met.unlike(&side(7), true);
        met.ran(&side(8));
        assert!(met.is_unlike(&side(7)) && !met.is_unlike(&side(8)));
        assert!(met.only_others_ran(&side(7)) && !met.only_others_ran(&side(8)));
        met.unlike(&side(7), false);
        assert!(!met.is_unlike(&side(7)));
    }

    #[test]
    fn callers_who_send_ever_other_shapes_do_not_fill_the_memory() {
        let mut met = Met::new();
        (0..3 * SHAPES_MAX).for_each(|n| met.ran(&side(n)));
        assert!(met.0.len() <= SHAPES_MAX, "{}", met.0.len());
        assert!(!met.only_others_ran(&side(3 * SHAPES_MAX - 1)), "the last is known");
    }
}
