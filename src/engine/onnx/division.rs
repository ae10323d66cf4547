//! Integer divisions whose result does not fit: the least number by -1.
//!
//! ONNX Runtime divides whole numbers (`Div`, `Mod`) by the processor's instruction. It checks for zeros before, but not for this one case,
//! for which x86-64 raises a signal that ends the process: one request, or one constant of a model file, would end the service. Here the
//! division is completed as Arm's processors and NumPy do it: the quotient wraps around to the least number, the remainder is 0.
//!
//! Decoded by the Intel 64 manual, volume 2: chapter 2 (prefixes, ModR/M, SIB) and `IDIV`.
#![allow(unsafe_code)]

/// Completes such divisions from now on, in the whole process. Any other fault of arithmetic ends the process, as before.
pub(super) fn complete_divisions() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    trap::install();
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod trap {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX,
        REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP, c_int, c_void, sigaction, siginfo_t,
        ucontext_t,
    };
    use std::{mem, ptr, sync::Once};

    /// What the kernel says of a division by zero, and of a quotient that does not fit (asm-generic/siginfo.h).
    const FPE_INTDIV: c_int = 1;

    static INSTALLED: Once = Once::new();

    pub(super) fn install() {
        INSTALLED.call_once(|| {
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = complete;
            // SAFETY: all fields may be zero; those that count are set. The handler only touches what the kernel hands it.
            unsafe {
                let mut action: sigaction = mem::zeroed();
                action.sa_sigaction = handler as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                sigaction(libc::SIGFPE, &raw const action, ptr::null_mut());
            }
        });
    }

    /// Completes the division at which the thread stands and goes on behind it, or else ends the process.
    extern "C" fn complete(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes both, and the thread's registers are this handler's to change. Where an instruction has trapped, its
        // bytes are there, and no instruction is longer than 15. Only those of the division are read, one after the other.
        unsafe {
            let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
            let at = registers[REG_RIP as usize] as *const u8;
            if (*info).si_code == FPE_INTDIV
                && let Some(Division { bytes, is_wide, divisor }) = Division::read(|i| *at.add(i))
                && divisor.is_none_or(|register| is_minus_one(registers[register], is_wide))
                && is_least(registers[REG_RAX as usize], registers[REG_RDX as usize], is_wide)
            {
                // The quotient is the dividend, which lies there already.
                registers[REG_RDX as usize] = 0;
                registers[REG_RIP as usize] += bytes as i64;
            } else {
                // It traps again when this returns.
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }

    fn is_minus_one(value: i64, is_wide: bool) -> bool {
        if is_wide { value == -1 } else { value as i32 == -1 }
    }

    /// Whether the dividend, in two registers, is the least number of half its width.
    fn is_least(low: i64, high: i64, is_wide: bool) -> bool {
        let least = if is_wide { low == i64::MIN } else { low as i32 == i32::MIN };
        least && is_minus_one(high, is_wide)
    }

    /// A signed division of 32 or 64 bits.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Division {
        /// How long the instruction is.
        pub(super) bytes: usize,
        /// Of 64 bits.
        pub(super) is_wide: bool,
        /// Index among the context's registers; `None`: the divisor lies in memory. There it is taken to be -1: it is not 0, for which
        /// whoever divides the least number checks before.
        pub(super) divisor: Option<usize>,
    }

    impl Division {
        /// Reads an instruction byte by byte. `None` if it is another one.
        pub(super) fn read(byte: impl Fn(usize) -> u8) -> Option<Division> {
            let rex = Some(byte(0)).filter(|first| first & 0xf0 == 0x40);
            let start = usize::from(rex.is_some());
            let rex = rex.unwrap_or(0);
            if byte(start) != 0xf7 {
                return None;
            }
            let modrm = byte(start + 1);
            let (mode, digit, operand) = (modrm >> 6, (modrm >> 3) & 7, modrm & 7);
            if digit != 7 {
                return None;
            }
            let has_sib = mode != 3 && operand == 4;
            let displacement = match mode {
                0 if operand == 5 || (has_sib && byte(start + 2) & 7 == 5) => 4,
                1 => 1,
                2 => 4,
                _ => 0,
            };
            let register = usize::from(operand | (rex & 1) << 3);
            Some(Division {
                bytes: start + 2 + usize::from(has_sib) + displacement,
                is_wide: rex & 8 != 0,
                divisor: (mode == 3).then(|| REGISTERS[register] as usize),
            })
        }
    }

    /// The context's registers in the order in which instructions number them.
    const REGISTERS: [c_int; 16] = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10,
        REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    ];
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::{complete_divisions, trap::Division};
    use std::arch::asm;

    /// Quotient and remainder as the processor computes them, with the divisor in a register or in memory.
    macro_rules! divided {
        ($number:ty, $form:tt, $register:tt, $low:tt, $high:tt, $by:expr) => {{
            let by: $number = $by;
            let (mut quotient, mut remainder): ($number, $number) = (<$number>::MIN, -1);
            // SAFETY: a division changes two registers and flags, and the memory is read only.
            unsafe {
                asm!($register, by = in(reg) by, inout($low) quotient, inout($high) remainder);
            }
            let in_register = (quotient, remainder);
            (quotient, remainder) = (<$number>::MIN, -1);
            let table: [$number; 3] = [1, 1, by];
            // SAFETY: as above; the third number of the table is read.
            unsafe {
                asm!($form, table = in(reg) table.as_ptr(), index = in(reg) 1_u64, inout($low) quotient, inout($high) remainder);
            }
            (in_register, (quotient, remainder))
        }};
    }

    #[test]
    fn the_least_number_by_minus_one_wraps_around_instead_of_ending_the_process() {
        complete_divisions();
        let wide = divided!(i64, "idiv qword ptr [{table} + 8*{index} + 8]", "idiv {by:r}", "rax", "rdx", -1);
        assert_eq!(wide, ((i64::MIN, 0), (i64::MIN, 0)));
        let narrow =
            divided!(i32, "idiv dword ptr [{table} + 4*{index} + 4]", "idiv {by:e}", "eax", "edx", -1);
        assert_eq!(narrow, ((i32::MIN, 0), (i32::MIN, 0)));
        let others =
            divided!(i64, "idiv qword ptr [{table} + 8*{index} + 8]", "idiv {by:r}", "rax", "rdx", -2);
        assert_eq!(others, ((1 << 62, 0), (1 << 62, 0)), "others are as they were");
    }

    #[test]
    fn divisions_are_told_from_other_instructions_and_where_they_end() {
        let read = |bytes: &[u8]| Division::read(|i| bytes[i]);
        let is = |bytes: usize, is_wide, divisor: Option<i32>| {
            let divisor = divisor.map(|register| register as usize);
            Some(Division { bytes, is_wide, divisor })
        };
        assert_eq!(read(&[0xf7, 0xf9]), is(2, false, Some(libc::REG_RCX)), "idiv ecx");
        assert_eq!(read(&[0x48, 0xf7, 0xfe]), is(3, true, Some(libc::REG_RSI)), "idiv rsi");
        assert_eq!(read(&[0x49, 0xf7, 0xfc]), is(3, true, Some(libc::REG_R12)), "idiv r12");
        assert_eq!(read(&[0xf7, 0x39]), is(2, false, None), "idiv dword ptr [rcx]");
        assert_eq!(read(&[0xf7, 0x3d, 1, 2, 3, 4]), is(6, false, None), "idiv dword ptr [rip + ...]");
        assert_eq!(read(&[0x48, 0xf7, 0x7d, 0xf8]), is(4, true, None), "idiv qword ptr [rbp - 8]");
        assert_eq!(read(&[0x4a, 0xf7, 0x3c, 0xd0]), is(4, true, None), "idiv qword ptr [rax + 8*r10]");
        assert_eq!(read(&[0xf7, 0x3c, 0x25, 1, 2, 3, 4]), is(7, false, None), "idiv dword ptr [...]");
        assert_eq!(read(&[0xf7, 0xbc, 0x24, 1, 2, 3, 4]), is(7, false, None), "idiv dword ptr [rsp + ...]");
        assert_eq!(read(&[0xf7, 0xf1]), None, "div ecx, which is unsigned");
        assert_eq!(read(&[0x90, 0x90]), None);
    }
}
