//! What follows from an Xid error, by NVIDIA's published catalogue. Pure.

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// An application was at fault, or nothing follows: the GPU goes on. If it was ours, its calls fail as well.
    Nothing,
    /// The GPU goes on, but must prove that it works.
    Doubt,
    /// No more work until it has been taken anew, and has proved that it works.
    Fence,
    /// It needs a reset by the machine's operator: it is looked at now and then.
    Reset,
    /// It is gone from the bus.
    Gone,
}

impl Follows {
    /// In words, for the log.
    pub fn words(self) -> &'static str {
        match self {
            Follows::Nothing => "an application's error, or a note: the GPU goes on",
            Follows::Doubt => "the GPU goes on, and has to show that it works",
            Follows::Fence => "the GPU is taken out until it has shown that it works",
            Follows::Reset => "the GPU needs a reset by whoever runs the machine",
            Follows::Gone => "the GPU has fallen off the bus",
        }
    }
}

/// Looks an Xid up.
pub fn follows(xid: u64) -> Follows {
    match xid {
        // Off the bus.
        79 => Follows::Gone,
        // Faults of applications: bad addresses, bad instructions, time-outs of kernels, decoders and encoders; contained errors
        // end the application that met them.
        8
        | 11
        | 13
        | 25
        | 31
        | 32
        | 39..=41
        | 45
        | 60
        | 68..=72
        | 75..=77
        | 80
        | 82..=86
        | 88
        | 89
        | 94
        | 96..=105 => Follows::Nothing,
        // Notices of the driver: a row was remapped, or a message about clocks or firmware.
        37 | 38 | 43 | 44 | 66 | 67 | 93 | 121 | 137 | 141 | 152 | 153 | 157 | 160 | 161 => Follows::Nothing,
        // A row was remapped, or many single-bit errors were corrected; or the driver's advice has changed, which is read separately.
        63 | 92 | 154 => Follows::Doubt,
        // A double-bit error; the bridge between GPUs.
        48 | 74 | 144..=150 => Follows::Fence,
        // A hang, no more spare rows, uncontained errors, a context or firmware that does not answer.
        46 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 151 | 155 | 156 | 158 => Follows::Reset,
        // What the catalogue does not name may be anything.
        _ => Follows::Doubt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_faults_are_ignored_and_fatal_ones_are_not() {
        for (xids, expected) in [
            (&[13, 31, 43, 45, 68, 94][..], Follows::Nothing),
            (&[63, 92, 154, 9999], Follows::Doubt),
            (&[48, 74, 149], Follows::Fence),
            (&[64, 95, 109, 119, 140, 155], Follows::Reset),
            (&[79], Follows::Gone),
        ] {
            for xid in xids {
                assert_eq!(follows(*xid), expected, "Xid {xid}");
            }
        }
    }
}
