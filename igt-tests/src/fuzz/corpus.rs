// SPDX-License-Identifier: GPL-2.0

//! Calls as numbers, and those that are kept because they have reached new places of our code.
//!
//! A call is what a sequence of random words says: that of its seed, in which some words are changed.
//! A variation of a kept call has one or two more changes. Recorded are the seed and the changes, so a
//! repetition draws the same words, whatever the kept calls are by then.

use std::fmt::{self, Display};
use std::str::SplitWhitespace;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::calls::table;
use crate::misc::{mix, Lcg};

const ORDER: Ordering = Ordering::Relaxed;

/// Words of a call that are changed, at most.
const CHANGES: usize = 8;
/// A change is the number of a word, which is not zero, above this many random bits.
const PLACE: u32 = 20;
/// The last word that a change can name.
const LAST: u64 = (1 << (u32::BITS - PLACE)) - 1;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The seed of its words.
    pub seed: u64,
    /// Its kind.
    pub op: usize,
    changes: [u32; CHANGES],
}

impl Step {
    /// Of a seed, and of a kind that is given or random.
    pub fn new(seed: u64, kind: Option<usize>) -> Self {
        let random = table().pick(&mut Lcg::new(mix(seed, 0)));
        Self {
            seed,
            op: kind.unwrap_or(random),
            changes: [0; CHANGES],
        }
    }

    /// Changes one or two of the words that the call has drawn.
    fn vary(&mut self, drawn: u32, random: &mut Lcg) {
        let last = u64::from(drawn).saturating_sub(1).clamp(1, LAST);
        for _ in 0..=random.below(2) {
            let place = 1 + random.below(last) as u32;
            let same = |known: &u32| *known == 0 || known >> PLACE == place;
            let free = self.changes.iter().position(same);
            let index = free.unwrap_or_else(|| random.below(CHANGES as u64) as usize);
            self.changes[index] = place << PLACE | random.below(1 << PLACE) as u32;
        }
    }

    /// Reads what [`Display`] writes.
    pub fn parse(words: &mut SplitWhitespace<'_>) -> Option<Self> {
        let mut numbers = words.next()?.split('^').map(|number| {
            let digits = number.strip_prefix("0x")?;
            u64::from_str_radix(digits, 16).ok()
        });
        let seed = numbers.next()??;
        let kind = table().named(&words.next()?.replace('-', " "))?;
        let mut step = Self::new(seed, Some(kind));
        for (index, number) in numbers.enumerate() {
            *step.changes.get_mut(index)? = number?.try_into().ok()?;
        }
        Some(step)
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.seed)?;
        for change in self.changes.iter().filter(|change| **change != 0) {
            write!(f, "^{change:#x}")?;
        }
        write!(f, " {}", table().name(self.op).replace(' ', "-"))
    }
}

/// The words of a call, in their order.
#[derive(Debug)]
pub struct Words {
    random: Lcg,
    changes: [u32; CHANGES],
    drawn: u32,
}

impl Words {
    /// Of a call. The first word has chosen its kind.
    pub fn new(step: &Step) -> Self {
        let mut words = Self {
            random: Lcg::new(mix(step.seed, 0)),
            changes: step.changes,
            drawn: 0,
        };
        words.word();
        words
    }

    /// How many were drawn.
    pub fn drawn(&self) -> u32 {
        self.drawn
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        let (word, place) = (self.random.word(), self.drawn);
        self.drawn += 1;
        let changes = self.changes.iter().filter(|change| **change != 0);
        let changed = changes.copied().find(|change| change >> PLACE == place);
        changed.map_or(word, |change| mix(change.into(), 0))
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A call in shared memory.
#[derive(Debug)]
pub struct Slot {
    seed: AtomicU64,
    op: AtomicU32,
    changes: [AtomicU32; CHANGES],
}

impl Slot {
    /// Stores a call.
    pub fn store(&self, step: &Step) {
        self.seed.store(step.seed, ORDER);
        self.op.store(step.op as u32, ORDER);
        for (slot, change) in self.changes.iter().zip(step.changes) {
            slot.store(change, ORDER);
        }
    }

    /// Loads it. If another thread stores one meanwhile, this is a mixture of both, which is a call
    /// as well.
    pub fn load(&self) -> Step {
        Step {
            seed: self.seed.load(ORDER),
            op: self.op.load(ORDER) as usize,
            changes: std::array::from_fn(|index| self.changes[index].load(ORDER)),
        }
    }
}

/// The calls of a kept sequence, at most: the one that has reached new places is the last one.
pub const SEQUENCE: usize = 3;
/// Sequences that are kept. The oldest ones make room: later ones reach what others do not.
const SEQUENCES: usize = 512;

/// A sequence that is kept.
#[derive(Debug)]
struct Sequence {
    steps: [Slot; SEQUENCE],
    len: AtomicU32,
    /// How many words the last call has drawn.
    drawn: AtomicU32,
}

/// The sequences of all threads.
#[derive(Debug)]
pub struct Corpus {
    kept: AtomicU64,
    sequences: [Sequence; SEQUENCES],
}

impl Corpus {
    /// Keeps up to [`SEQUENCE`] calls of a thread, of which the last one has drawn so many words.
    pub fn keep(&self, steps: &[Step], drawn: u32) {
        let number = self.kept.fetch_add(1, ORDER) as usize;
        let sequence = &self.sequences[number % SEQUENCES];
        for (slot, step) in sequence.steps.iter().zip(steps) {
            slot.store(step);
        }
        sequence.drawn.store(drawn, ORDER);
        let len = steps.len().min(SEQUENCE);
        sequence.len.store(len as u32, ORDER);
    }

    /// How many were kept so far.
    pub fn kept(&self) -> u64 {
        self.kept.load(ORDER)
    }

    /// A kept sequence, or the end of it, with a variation of its last call; empty if there is none.
    pub fn vary(&self, random: &mut Lcg) -> Vec<Step> {
        let count = self.kept().clamp(1, SEQUENCES as u64);
        let sequence = &self.sequences[random.below(count) as usize];
        let len = sequence.len.load(ORDER) as usize;
        let first = random.below(len.max(1) as u64) as usize;
        let mut steps: Vec<_> = sequence.steps[first..len].iter().map(Slot::load).collect();
        if let Some(last) = steps.last_mut() {
            last.vary(sequence.drawn.load(ORDER), random);
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::world::World;

    fn words(step: &Step) -> Vec<u64> {
        let mut words = Words::new(step);
        (0..10).map(|_| words.word()).collect()
    }

    #[test]
    fn a_variation_draws_other_words_in_few_places() {
        let plain = Step::new(7, None);
        let mut lcg = Lcg::new(mix(7, 0));
        assert_eq!(table().pick(&mut lcg), plain.op);
        let drawn: Vec<_> = (0..10).map(|_| lcg.word()).collect();
        assert_eq!(words(&plain), drawn);
        let mut random = Lcg::new(1);
        for _ in 0..100 {
            let mut step = plain;
            // It has drawn its kind and five words.
            step.vary(6, &mut random);
            let places: Vec<_> = (0..10)
                .filter(|at| words(&step)[*at] != drawn[*at])
                .collect();
            assert!((1..=2).contains(&places.len()), "{places:?}");
            assert!(places.iter().all(|place| *place < 5), "{places:?}");
            assert_eq!((step.seed, step.op), (plain.seed, plain.op));
        }
    }

    #[test]
    fn a_variation_may_be_varied_for_ever() {
        let (mut step, mut random) = (Step::new(7, None), Lcg::new(2));
        for _ in 0..100 {
            let before = step;
            step.vary(u32::MAX, &mut random);
            assert_ne!(step, before);
        }
        assert!(!step.changes.contains(&0));
        step = Step::new(7, None);
        step.vary(0, &mut random);
        // With one place, there is one change.
        assert_eq!(step.changes[0] >> PLACE, 1);
        assert_eq!(step.changes[1], 0);
    }

    #[test]
    fn a_step_is_written_as_it_is_read() {
        let parse = |text: &str| Step::parse(&mut text.split_whitespace());
        let kind = table().named("syncobj_handle_to_fd of a fence");
        let mut step = Step::new(0xabc, kind);
        assert_eq!(step.to_string(), "0xabc syncobj_handle_to_fd-of-a-fence");
        assert_eq!(parse(&step.to_string()), Some(step));
        let mut random = Lcg::new(3);
        for _ in 0..8 {
            step.vary(20, &mut random);
            assert_eq!(parse(&step.to_string()), Some(step));
        }
        let text = format!("0x1{} open", "^0x100000".repeat(CHANGES + 1));
        assert_eq!(parse(&text), None);
        for wrong in [
            "0x1^ open",
            "0x1^7 open",
            "0x1^0x100000000 open",
            "0x1 nothing",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_corpus_keeps_the_newest_sequences() {
        let corpus = &World::new().unwrap().corpus;
        let mut random = Lcg::new(4);
        assert_eq!(corpus.vary(&mut random), []);
        let steps: Vec<_> = (1..=3).map(|seed| Step::new(seed, Some(0))).collect();
        corpus.keep(&steps[..1], 5);
        for _ in 0..SEQUENCES {
            corpus.keep(&steps, 5);
        }
        assert_eq!(corpus.kept(), SEQUENCES as u64 + 1);
        let mut lengths = [0; SEQUENCE];
        for _ in 0..300 {
            let varied = corpus.vary(&mut random);
            let (last, before) = varied.split_last().unwrap();
            assert_eq!(before, &steps[SEQUENCE - varied.len()..][..before.len()]);
            assert_eq!(last.seed, 3);
            assert_ne!(*last, steps[2]);
            lengths[varied.len() - 1] += 1;
        }
        assert!(lengths.iter().all(|count| *count > 50), "{lengths:?}");
    }

    /// The deepest place that so many calls reach, if each of its words opens the way to the next
    /// place with a probability of one eighth.
    fn depth(guided: bool) -> usize {
        let world = World::new().unwrap();
        let mut guide = Lcg::new(5);
        for number in 0..20_000 {
            let steps = match guided && guide.below(2) == 0 {
                true => world.corpus.vary(&mut guide),
                false => vec![Step::new(number, Some(0))],
            };
            for step in steps {
                let mut words = Words::new(&step);
                let depth = (0..20).take_while(|_| words.below(8) == 0).count();
                if world.places.note(0..=depth as u64) > 0 {
                    world.corpus.keep(&[step], 20);
                }
            }
        }
        world.places.count() as usize
    }

    #[test]
    fn kept_calls_lead_to_deeper_places() {
        let (guided, blind) = (depth(true), depth(false));
        assert!(guided > blind + 3, "{guided} and {blind}");
    }
}
