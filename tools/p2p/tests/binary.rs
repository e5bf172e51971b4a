// SPDX-License-Identifier: GPL-2.0

//! The program is one static file, which can be copied to any machine.

use std::fs;

/// The type of a program header that names an interpreter, the dynamic linker.
const PT_INTERP: u32 = 3;

#[test]
fn needs_no_libraries() {
    let elf = fs::read(env!("CARGO_BIN_EXE_p2p")).unwrap();
    let word = |at: usize| u16::from_le_bytes([elf[at], elf[at + 1]]) as usize;
    assert_eq!(elf[..6], *b"\x7fELF\x02\x01", "64 bits, little-endian");
    let begin = u64::from_le_bytes(elf[32..40].try_into().unwrap()) as usize;
    let (size, count) = (word(54), word(56));
    assert!(count > 0);
    for at in (0..count).map(|index| begin + index * size) {
        let kind = u32::from_le_bytes(elf[at..at + 4].try_into().unwrap());
        assert_ne!(kind, PT_INTERP, "it is dynamically linked");
    }
}
