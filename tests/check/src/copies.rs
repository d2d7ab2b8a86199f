//! Where each record is durable, as somebody sees it who owns all disks and the store: nothing is acknowledged before a majority's fsync (I7), and what was
//! acknowledged stays on a majority's disks until a published manifest names an object that holds it (I1, I10).
//!
//! Owns: what is known of each record, which acknowledged ones have too few copies.
//! Not here: reading disks, manifests, and objects (whoever owns the world).
//! Spec: docs/INVARIANTS.md (I1, I7, I10)
//!
//! A machine has a record while the synced bytes of one of its files hold the record's value. Bytes that count no more (a truncated entry, an old
//! life of a recycled file) still count here: this finds too few copies, and not each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::history::{Producer, Sequence};

/// A record, by who sent it.
pub type RecordId = (Producer, Sequence);

/// A machine, numbered by whoever owns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Machine(pub usize);

/// What each piece of a file holds.
type Pieces = BTreeMap<usize, Vec<RecordId>>;

#[derive(Clone, Debug, Default)]
struct Held {
    /// In how many places of each machine.
    on: BTreeMap<Machine, usize>,
    published: bool,
    acknowledged: bool,
}

/// Where all records are.
#[derive(Clone, Debug)]
pub struct Copies {
    needed: usize,
    keeps: BTreeSet<Machine>,
    files: BTreeMap<(Machine, u64), Pieces>,
    records: HashMap<RecordId, Held>,
    /// Acknowledged or moved since [`Copies::missing`] found nothing wrong with them.
    open: BTreeSet<RecordId>,
}

/// An acknowledged record with too few copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub record: RecordId,
    /// Who has it.
    pub on: Vec<Machine>,
    /// How many should.
    pub needed: usize,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (producer, sequence) = self.record;
        write!(
            f,
            "record {} of producer {} is durable on {} machines {:?} where {} are needed, and no published manifest names an object that holds it",
            sequence.0,
            producer.0,
            self.on.len(),
            self.on.iter().map(|machine| machine.0).collect::<Vec<_>>(),
            self.needed
        )
    }
}

impl Copies {
    /// A record counts as safe on so many machines.
    #[must_use]
    pub fn new(needed: usize) -> Self {
        Self {
            needed,
            keeps: BTreeSet::new(),
            files: BTreeMap::new(),
            records: HashMap::new(),
            open: BTreeSet::new(),
        }
    }

    /// The disk of this machine is damaged on purpose: what it once had counts for ever.
    pub fn keeps(&mut self, machine: Machine) {
        self.keeps.insert(machine);
    }

    /// What the synced bytes of a piece of a file hold now, instead of what they held.
    pub fn piece(&mut self, machine: Machine, file: u64, piece: usize, records: Vec<RecordId>) {
        for record in &records {
            let held = self.records.entry(*record).or_default();
            *held.on.entry(machine).or_default() += 1;
        }
        let pieces = self.files.entry((machine, file)).or_default();
        let before = if records.is_empty() {
            pieces.remove(&piece)
        } else {
            pieces.insert(piece, records)
        };
        self.gone(machine, &before.unwrap_or_default());
    }

    /// The file has no durable name any more on this machine. What it held.
    pub fn file_gone(&mut self, machine: Machine, file: u64) -> Vec<RecordId> {
        let pieces = self.files.remove(&(machine, file)).unwrap_or_default();
        let records: Vec<RecordId> = pieces.into_values().flatten().collect();
        self.gone(machine, &records);
        records
    }

    fn gone(&mut self, machine: Machine, records: &[RecordId]) {
        if self.keeps.contains(&machine) {
            return;
        }
        for record in records {
            let held = self.records.entry(*record).or_default();
            if let Some(places) = held.on.get_mut(&machine) {
                *places = places.saturating_sub(1);
                if *places == 0 {
                    held.on.remove(&machine);
                    self.open.insert(*record);
                }
            }
        }
    }

    /// A published manifest names an object that holds it.
    pub fn published(&mut self, record: RecordId) {
        self.records.entry(record).or_default().published = true;
    }

    /// Those that were acknowledged, and are in no object that a published manifest names.
    #[must_use]
    pub fn only_local(&self, records: &[RecordId]) -> Vec<RecordId> {
        let only_local = |record: &RecordId| {
            let held = self.records.get(record);
            held.is_some_and(|held| held.acknowledged && !held.published)
        };
        records.iter().copied().filter(only_local).collect()
    }

    /// Its producer has the acknowledgement.
    pub fn acknowledged(&mut self, record: RecordId) {
        self.records.entry(record).or_default().acknowledged = true;
        self.open.insert(record);
    }

    /// Acknowledged records that have too few copies now. Asked again, those that still have.
    #[must_use]
    pub fn missing(&mut self) -> Vec<Missing> {
        let mut missing = Vec::new();
        for record in std::mem::take(&mut self.open) {
            let held = self.records.entry(record).or_default();
            if held.acknowledged && !held.published && held.on.len() < self.needed {
                self.open.insert(record);
                missing.push(Missing {
                    record,
                    on: held.on.keys().copied().collect(),
                    needed: self.needed,
                });
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RecordId = (Producer(0), Sequence(1));
    const TWO: RecordId = (Producer(0), Sequence(2));

    fn of(copies: &mut Copies) -> Vec<(RecordId, usize)> {
        let missing = copies.missing().into_iter();
        missing
            .map(|missing| (missing.record, missing.on.len()))
            .collect()
    }

    /// Three machines; both records are synced on the first two.
    fn world() -> Copies {
        let mut copies = Copies::new(2);
        for machine in 0..2 {
            copies.piece(Machine(machine), 7, 0, vec![ONE]);
            copies.piece(Machine(machine), 7, 1, vec![TWO]);
        }
        copies
    }

    // Proves: what a majority has synced may be acknowledged, and then stays so; what one machine alone has, in two places too, or nobody, may not.
    #[test]
    fn an_acknowledgement_before_a_majority_has_synced() {
        let mut copies = world();
        copies.acknowledged(ONE);
        assert_eq!(of(&mut copies), []);
        let late = (Producer(0), Sequence(3));
        copies.piece(Machine(2), 9, 0, vec![late]);
        copies.piece(Machine(2), 9, 1, vec![late]);
        assert_eq!(of(&mut copies), [], "nobody was told yet");
        copies.acknowledged(late);
        let nowhere = (Producer(1), Sequence(0));
        copies.acknowledged(nowhere);
        assert_eq!(of(&mut copies), [(late, 1), (nowhere, 0)]);
        copies.piece(Machine(0), 7, 2, vec![late]);
        assert_eq!(of(&mut copies), [(nowhere, 0)], "still wrong");
    }

    // Proves: a purge that takes acknowledged records off a majority before they are published is found, of overwritten bytes as of files that are gone;
    // after the publication it is right, and what nobody was told may go.
    #[test]
    fn a_purge_before_a_publication() {
        let mut copies = world();
        copies.acknowledged(ONE);
        let gone = copies.file_gone(Machine(0), 7);
        assert_eq!(gone, [ONE, TWO]);
        assert_eq!(
            copies.only_local(&gone),
            [ONE],
            "the other was never acknowledged"
        );
        assert_eq!(of(&mut copies), [(ONE, 1)]);
        let mut copies = world();
        copies.acknowledged(TWO);
        copies.piece(Machine(1), 7, 1, Vec::new());
        assert_eq!(of(&mut copies), [(TWO, 1)]);
        copies.published(TWO);
        assert_eq!(of(&mut copies), []);
        let gone = copies.file_gone(Machine(0), 7);
        assert_eq!(copies.only_local(&gone), []);
        assert_eq!(of(&mut copies), []);
    }

    // Proves: a record that moves inside a machine is there all the time; one on a third machine makes up for a lost one.
    #[test]
    fn copies_may_move() {
        let mut copies = world();
        copies.acknowledged(ONE);
        copies.piece(Machine(1), 8, 0, vec![ONE]);
        copies.file_gone(Machine(1), 7);
        copies.piece(Machine(2), 1, 0, vec![ONE]);
        copies.file_gone(Machine(0), 7);
        assert_eq!(of(&mut copies), []);
    }

    // Proves: of a machine whose disk is damaged on purpose counts what it once had, and nothing else.
    #[test]
    fn a_damaged_machine_had_it() {
        let mut copies = world();
        copies.keeps(Machine(0));
        copies.acknowledged(ONE);
        copies.file_gone(Machine(0), 7);
        assert_eq!(of(&mut copies), []);
        copies.file_gone(Machine(1), 7);
        assert_eq!(of(&mut copies), [(ONE, 1)]);
        assert!(
            copies.missing()[0]
                .to_string()
                .contains("durable on 1 machines [0] where 2")
        );
    }
}
