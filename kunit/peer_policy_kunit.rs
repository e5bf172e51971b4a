// SPDX-License-Identifier: GPL-2.0

//! KUnit suite for the export policy, `kernel::drm::gem::peer`.

use kernel::prelude::*;

module! {
    type: PeerPolicyKunit,
    name: "peer_policy_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suite for the peer export policy",
    license: "GPL",
}

struct PeerPolicyKunit;

impl kernel::Module for PeerPolicyKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

#[kunit_tests(peer_policy)]
mod tests {
    use kernel::{
        dma_buf::peer::Route,
        drm::{
            gem::peer::{
                decide,
                placement,
                placement_without_window,
                AttachmentInfo,
                Facts,
                Outcome,
                Path,
                Placement,
                Reason,
                Refusals,
                Situation,
                State,
                Use,
                MAX_REFUSALS,
                NAME_LEN, //
            },
            vram::{
                Domain,
                MemType, //
            }, //
        },
        pci::p2pdma::MapType,
        prelude::*, //
    };

    /// How many bits a case has: see [`facts`].
    const CASE_BITS: u32 = 14;

    /// Makes the combination of facts that the bits of `case` stand for.
    fn facts(case: u32) -> Facts {
        let bit = |n: u32| case & (1 << n) != 0;

        Facts {
            suspended: bit(1),
            route: Route {
                opted_in: bit(2),
                pci: bit(3),
                map_type: match (case >> 10) & 3 {
                    0 => MapType::NOT_SUPPORTED,
                    1 => MapType::BUS_ADDR,
                    _ => MapType::THRU_HOST_BRIDGE,
                },
            },
            inside_bar: bit(5),
            // There are three domains for four values: one is used twice.
            domain: match (case >> 6) & 3 {
                0 => Domain::Vram,
                1 => Domain::System,
                _ => Domain::Either,
            },
            vram_or_fail: bit(12),
            encoded: bit(13),
            pinned: match (case >> 8) & 3 {
                0 => None,
                1 => Some(MemType::Tt),
                2 => Some(MemType::System),
                _ => Some(MemType::Vram),
            },
            unrevocable: bit(0),
        }
    }

    /// The reasons against peer-to-peer memory, in the order in which they are reported.
    fn obstacles(f: &Facts) -> [(bool, Reason); 7] {
        [
            (!f.route.opted_in, Reason::NoOptIn),
            (!f.route.pci, Reason::NotPci),
            (f.route.map_type == MapType::NOT_SUPPORTED, Reason::NoRoute),
            (!f.inside_bar, Reason::OutsideBar),
            (f.suspended, Reason::Suspended),
            (
                f.unrevocable && f.domain != Domain::System,
                Reason::NotRevocable,
            ),
            (f.encoded && f.domain != Domain::System, Reason::Encoded),
        ]
    }

    #[test]
    fn all_combinations() {
        for case in 0..1 << CASE_BITS {
            let f = facts(case);
            let outcome = decide(&f);
            let first = obstacles(&f).into_iter().find(|(there, _)| *there);

            let not_in_vram = if f.vram_or_fail || f.domain == Domain::Vram {
                Outcome::refused
            } else {
                Outcome::system
            };

            let expected = match first {
                None if f.domain == Domain::System => not_in_vram(Reason::SystemOnly),
                None if matches!(f.pinned, Some(MemType::Tt | MemType::System)) => {
                    not_in_vram(Reason::PinnedElsewhere)
                }
                None if f.route.map_type == MapType::BUS_ADDR => Outcome::peer(Path::PeerBus),
                None => Outcome::peer(Path::PeerHostBridge),
                Some((_, reason)) if f.vram_or_fail || f.domain == Domain::Vram => {
                    Outcome::refused(reason)
                }
                Some(_) if f.pinned == Some(MemType::Vram) => {
                    Outcome::refused(Reason::PinnedElsewhere)
                }
                Some((_, reason)) => Outcome::system(reason),
            };

            assert!(outcome == expected);
        }
    }

    #[test]
    fn never_silent() {
        for case in 0..1 << CASE_BITS {
            let outcome = decide(&facts(case));

            // An outcome has a reason if and only if it is not peer to peer.
            assert!(outcome.path.is_peer() == (outcome.reason == Reason::None));
            // An outcome is an error if and only if it is refused.
            assert!((outcome.path == Path::Refused) == outcome.result().is_err());
            // The DMA-buf core warns about `EBUSY`.
            assert!(outcome.result() != Err(EBUSY));
        }
    }

    /// How many bits a case of [`situation`] has.
    const SITUATION_BITS: u32 = 14;

    /// Makes the combination that the bits of `case` stand for.
    fn situation(case: u32) -> (Situation, Use) {
        let bit = |n: u32| case & (1 << n) != 0;
        let mem_type = match (case >> 2) & 3 {
            0 => None,
            1 => Some(MemType::Tt),
            2 => Some(MemType::System),
            _ => Some(MemType::Vram),
        };
        let situation = Situation {
            attached: if bit(4) {
                Outcome::peer(Path::PeerBus)
            } else {
                Outcome::system(Reason::NoRoute)
            },
            all_peers: bit(5),
            mapped: bit(6),
            domain: match case & 3 {
                0 => Domain::Vram,
                1 => Domain::System,
                _ => Domain::Either,
            },
            vram_or_fail: bit(7),
            state: State {
                mem_type,
                pinned: bit(8),
                visible: bit(9),
            },
            active: bit(10),
            no_window: bit(11),
            was_suspended: bit(12),
        };

        (situation, if bit(13) { Use::Pin } else { Use::Map })
    }

    /// Each placement has its conditions, of which one holds in each situation.
    #[test]
    fn all_placements() {
        for case in 0..1 << SITUATION_BITS {
            let (s, by) = situation(case);
            let in_vram = s.state.mem_type == Some(MemType::Vram);
            let vram_only = s.vram_or_fail || s.domain == Domain::Vram;
            let reached = if in_vram {
                s.attached.path.is_peer()
            } else {
                !vram_only
            };
            let peers_only = s.all_peers && s.active && s.domain == Domain::Either;
            let fits = peers_only && !(s.no_window && s.mapped);
            let free = !s.state.pinned;

            assert!(match placement(&s, by) {
                Placement::Stay => !free && reached,
                Placement::Refuse(Reason::PinnedElsewhere) => !free && !reached,
                Placement::Refuse(Reason::Suspended) => free && vram_only && !s.active,
                Placement::Refuse(_) => false,
                Placement::Move { to, or } => {
                    free && match (to, or) {
                        (Domain::Vram, None) => vram_only && s.active,
                        (Domain::System, None) => !vram_only && !fits,
                        (Domain::Vram, Some(Domain::System)) => {
                            !vram_only && fits && by == Use::Pin
                        }
                        (Domain::Either, None) => !vram_only && fits && by == Use::Map,
                        _ => false,
                    }
                }
            });
            assert!(match placement_without_window(&s) {
                Placement::Move {
                    to: Domain::System,
                    or: None,
                } => free && !vram_only,
                Placement::Move { to, .. } => to == Domain::Vram && free && vram_only,
                _ => !free || vram_only,
            });
            // A mapping that skips the placement finds the object where it would be moved.
            if free && s.state.visible && s.active && !(s.no_window && s.mapped) {
                assert!(s.is_in_place() == (s.domain != Domain::System && (vram_only || fits)));
            }
        }
    }

    /// What an importer gets of a peer's object that moved has a reason.
    #[test]
    fn all_outcomes_of_uses() {
        for case in 0..1 << SITUATION_BITS {
            let (s, _) = situation(case);
            let in_vram = s.state.mem_type == Some(MemType::Vram);
            let vram_only = s.vram_or_fail || s.domain == Domain::Vram;
            let first = [
                (!s.all_peers, Reason::OtherImporter),
                (in_vram, Reason::NoWindow),
                (s.was_suspended, Reason::Suspended),
                (s.state.pinned, Reason::PinnedElsewhere),
                (s.no_window, Reason::NoWindow),
                (true, Reason::NoVram),
            ]
            .into_iter()
            .find_map(|(there, reason)| there.then_some(reason));

            let expected = match first {
                _ if !s.attached.path.is_peer() || (in_vram && !s.no_window) => s.attached,
                Some(reason) if in_vram || vram_only => Outcome::refused(reason),
                Some(reason) => Outcome::system(reason),
                None => continue,
            };
            assert!(s.outcome() == expected);
        }
    }

    #[test]
    fn errors_of_refusals() {
        for (reason, error) in [
            (Reason::NoOptIn, EOPNOTSUPP),
            (Reason::NotPci, EOPNOTSUPP),
            (Reason::NoRoute, EOPNOTSUPP),
            (Reason::OutsideBar, EOPNOTSUPP),
            (Reason::Suspended, EOPNOTSUPP),
            (Reason::OtherImporter, EOPNOTSUPP),
            (Reason::NoVram, EOPNOTSUPP),
            (Reason::SystemOnly, EOPNOTSUPP),
            (Reason::NotRevocable, EOPNOTSUPP),
            (Reason::NoWindow, EOPNOTSUPP),
            (Reason::Encoded, EOPNOTSUPP),
            (Reason::PinnedElsewhere, EOPNOTSUPP),
            (Reason::Quota, EDQUOT),
        ] {
            assert!(Outcome::refused(reason).result() == Err(error));
        }
    }

    #[test]
    fn codes_do_not_change() {
        let paths = [
            Path::PeerBus,
            Path::PeerHostBridge,
            Path::System,
            Path::Refused,
        ];
        let reasons = [
            Reason::None,
            Reason::NoOptIn,
            Reason::NotPci,
            Reason::NoRoute,
            Reason::OutsideBar,
            Reason::Suspended,
            Reason::OtherImporter,
            Reason::NoVram,
            Reason::SystemOnly,
            Reason::NotRevocable,
            Reason::NoWindow,
            Reason::Encoded,
            Reason::PinnedElsewhere,
            Reason::Quota,
        ];

        assert!(paths.map(Path::code) == [1, 2, 3, 4]);
        assert!(reasons.map(Reason::code) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17]);
    }

    #[test]
    fn refusals_keep_the_most_recent() {
        let mut refusals = Refusals::new();
        let refusal =
            |hops| AttachmentInfo::new(c"dev", Outcome::refused(Reason::NoRoute), Some(hops), 0);

        assert!(refusals.iter().next().is_none());
        for count in 1..40 {
            refusals.push(refusal(count));

            let oldest = count.saturating_sub(MAX_REFUSALS as u32 - 1).max(1);
            assert!(refusals.iter().map(|r| r.hops() as u32).eq(oldest..=count));
            assert_eq!(refusals.total(), count as usize);
        }
    }

    #[test]
    fn names_are_cut_and_terminated() {
        let info = |name| AttachmentInfo::new(name, Outcome::peer(Path::PeerBus), None, 0);

        let short = info(c"0000:03:00.0");
        assert!(short.name.starts_with(b"0000:03:00.0\0"));

        let fits = info(c"abcdefghijklmnopqrstuvwxyz01234");
        assert!(&fits.name[..NAME_LEN - 1] == b"abcdefghijklmnopqrstuvwxyz01234");
        assert_eq!(fits.name[NAME_LEN - 1], 0);

        let long = info(c"abcdefghijklmnopqrstuvwxyz0123456789");
        assert!(long.name == fits.name);
    }
}
