// SPDX-License-Identifier: GPL-2.0

//! The limits of pins of vvram, and its policies for importers that cannot be revoked.

use vvram_tests::gpu::Vvram;
use vvram_tests::holders::{accept, client, limit, parameter, refuse, refuse_unbind, shared, stay};
use vvram_tests::igt_main;

igt_main! {
    "refuse", "importers that cannot be revoked get system memory or nothing", refuse::<Vvram>;
    "refuse-unbind", "an unbind does not wait for mappings of system memory", refuse_unbind::<Vvram>;
    "limit", "importers that cannot be revoked pin so much of VRAM", limit::<Vvram>;
    "client", "one client has pinned so much of VRAM", client::<Vvram>;
    "stay", "what never leaves VRAM counts as pinned", stay::<Vvram>;
    "parameter", "limits and policy at first", parameter::<Vvram>;
    "accept", "an unbind waits for mappings of VRAM", accept::<Vvram>;
    "shared", "many importers map the same pages of system memory", shared::<Vvram>;
}
