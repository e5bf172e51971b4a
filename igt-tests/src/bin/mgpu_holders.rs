// SPDX-License-Identifier: GPL-2.0

//! The limits of pins of the modelled GPU, and its policies for importers that cannot be revoked.

use vvram_tests::gpu::Modelled;
use vvram_tests::holders::{accept, client, limit, parameter, refuse, refuse_unbind, stay};
use vvram_tests::igt_main;

igt_main! {
    "refuse", "importers that cannot be revoked get system memory or nothing", refuse::<Modelled>;
    "refuse-unbind", "an unbind does not wait for mappings of system memory", refuse_unbind::<Modelled>;
    "limit", "importers that cannot be revoked pin so much of VRAM", limit::<Modelled>;
    "client", "one client has pinned so much of VRAM", client::<Modelled>;
    "stay", "what never leaves VRAM counts as pinned", stay::<Modelled>;
    "parameter", "limits and policy at first", parameter::<Modelled>;
    "accept", "an unbind waits for mappings of VRAM", accept::<Modelled>;
}
