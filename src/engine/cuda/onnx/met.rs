//! What an engine has learned about input shapes.

use foldhash::{HashSet, HashSetExt};

/// Shapes that are remembered of each kind. One more, and all are forgotten.
const SHAPES_MAX: usize = 1024;

type Shapes = Vec<Vec<usize>>;

/// The input shapes that have come so far.
#[derive(Debug)]
pub(super) struct Met {
    /// Item shapes that ran, in batches of any size.
    ran: HashSet<Shapes>,
    /// Batch shapes whose outputs have other shapes than the model file says.
    unlike: HashSet<Shapes>,
}

impl Met {
    pub(super) fn new() -> Met {
        Met { ran: HashSet::new(), unlike: HashSet::new() }
    }

    /// Records that a run with these shapes was started.
    pub(super) fn ran(&mut self, shapes: &[Vec<usize>]) {
        note(&mut self.ran, items(shapes));
    }

    /// Records whether these inputs give outputs of other shapes than the model file says.
    pub(super) fn unlike(&mut self, shapes: &[Vec<usize>], unlike: bool) {
        if unlike {
            note(&mut self.unlike, shapes.to_vec());
        } else {
            self.unlike.remove(shapes);
        }
    }

    /// Whether these inputs give outputs of other shapes than the model file says.
    pub(super) fn is_unlike(&self, shapes: &[Vec<usize>]) -> bool {
        self.unlike.contains(shapes)
    }

    /// Whether items of other shapes have run, but none of these.
    pub(super) fn only_others_ran(&self, shapes: &[Vec<usize>]) -> bool {
        !self.ran.is_empty() && !self.ran.contains(&items(shapes))
    }
}

/// The shapes without the first axis: we choose the number of items ourselves.
fn items(shapes: &[Vec<usize>]) -> Shapes {
    shapes.iter().map(|shape| shape.get(1..).unwrap_or_default().to_vec()).collect()
}

fn note(known: &mut HashSet<Shapes>, shapes: Shapes) {
    if known.len() >= SHAPES_MAX && !known.contains(&shapes) {
        known.clear();
    }
    known.insert(shapes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(items: usize, side: usize) -> Shapes {
        vec![vec![items, 3, side, side]]
    }

    #[test]
    fn what_is_learned_of_some_shapes_says_nothing_of_others() {
        let mut met = Met::new();
        assert!(!met.only_others_ran(&side(1, 8)), "nothing ran at all");
        met.unlike(&side(1, 7), true);
        met.ran(&side(1, 8));
        assert!(met.is_unlike(&side(1, 7)) && !met.is_unlike(&side(1, 8)));
        assert!(met.only_others_ran(&side(1, 7)) && !met.only_others_ran(&side(1, 8)));
        assert!(!met.only_others_ran(&side(16, 8)), "the size of a batch is nobody's choice");
        met.unlike(&side(1, 7), false);
        assert!(!met.is_unlike(&side(1, 7)));
    }

    #[test]
    fn callers_who_send_ever_other_shapes_do_not_fill_the_memory() {
        let mut met = Met::new();
        for n in 0..3 * SHAPES_MAX {
            met.ran(&side(1, n));
            met.unlike(&side(1, n), true);
        }
        assert!(met.ran.len() <= SHAPES_MAX && met.unlike.len() <= SHAPES_MAX);
        assert!(!met.only_others_ran(&side(1, 3 * SHAPES_MAX - 1)), "the last is known");
    }
}
