//! Where the simulation breaks the code itself: crash points, and switchable faults of the past (mutants).
//!
//! Owns: the lists of both, and the questions that the code asks. Without the feature `breaking` there is nothing of it: a crash point is no code, a
//! mutant is always `false`. No binary that is released or tested elsewhere has the feature.
//! Not here: when a process crashes at a point, which mutant runs (`tests/sim`).
//! Spec: docs/simulation.md (crash points, mutants)

mod mutants;
mod points;

pub use mutants::Mutant;
pub use points::CrashPoint;

#[cfg(feature = "breaking")]
mod on {
    use super::{CrashPoint, Mutant};
    use std::cell::{Cell, RefCell};

    type Reached = Box<dyn FnMut(CrashPoint)>;

    thread_local! {
        static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
        static REACHED: RefCell<Option<Reached>> = const { RefCell::new(None) };
    }

    /// From now on this thread's code has the fault; `None`: it has none.
    pub fn set_mutant(mutant: Option<Mutant>) {
        MUTANT.set(mutant);
    }

    /// From now on `reached` is told of every crash point that this thread's code passes.
    pub fn on_crash_point(reached: impl FnMut(CrashPoint) + 'static) {
        REACHED.set(Some(Box::new(reached)));
    }

    /// Whether the code is to be wrong in this way.
    #[must_use]
    pub fn mutant(which: Mutant) -> bool {
        MUTANT.get() == Some(which)
    }

    /// The code is at this point: a process may die here.
    pub fn crash_point(point: CrashPoint) {
        // Taken out meanwhile: what is told may itself pass one.
        if let Some(mut reached) = REACHED.take() {
            reached(point);
            REACHED.set(Some(reached));
        }
    }
}

#[cfg(feature = "breaking")]
pub use on::{crash_point, mutant, on_crash_point, set_mutant};

/// Whether the code is to be wrong in this way: never, in this build.
#[cfg(not(feature = "breaking"))]
#[inline(always)]
#[must_use]
pub const fn mutant(_which: Mutant) -> bool {
    false
}

/// The code is at this point, where nothing happens in this build.
#[cfg(not(feature = "breaking"))]
#[inline(always)]
pub const fn crash_point(_point: CrashPoint) {}

/// An enum of names, with the list of all and what each means.
macro_rules! named {
    ($(#[$head:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$head])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name in plans and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// What it means.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let mut all = Self::ALL.iter().copied();
                all.find(|one| one.name() == text)
                    .ok_or_else(|| format!("there is no {text}"))
            }
        }
    };
}
use named;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Words of small letters and digits, with `-` between them.
    fn is_kebab(text: &str) -> bool {
        let is_word = |word: &str| {
            let mut letters = word.chars();
            !word.is_empty() && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        };
        text.split('-').all(is_word)
    }

    /// Proves that names are unique, of their form, and read back, and that each point says what it lies between.
    #[test]
    fn crash_points_are_named() {
        let names: BTreeSet<&str> = CrashPoint::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), CrashPoint::ALL.len());
        for one in CrashPoint::ALL {
            let parts = one.name().split_once('.');
            assert!(
                parts.is_some_and(|(area, step)| is_kebab(area) && is_kebab(step)),
                "{one}: area.step"
            );
            assert_eq!(one.name().parse(), Ok(*one));
            assert!(one.meaning().ends_with('.'), "{one}");
        }
        assert!("log".parse::<CrashPoint>().is_err());
    }

    /// Proves the same of mutants, and that each says what it breaks and where such a fault was seen.
    #[test]
    fn mutants_are_named() {
        let names: BTreeSet<&str> = Mutant::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), Mutant::ALL.len());
        for one in Mutant::ALL {
            assert!(is_kebab(one.name()), "{one}");
            assert_eq!(one.name().parse(), Ok(*one));
            let mut sentences = one.meaning().splitn(3, ". ");
            let fault = sentences.next().is_some_and(|text| !text.is_empty());
            let invariant = |text: &str| {
                let number = text.trim().strip_prefix('I').and_then(|n| n.parse().ok());
                number.is_some_and(|number: u8| (1..=16).contains(&number))
            };
            let breaks = sentences
                .next()
                .is_some_and(|all| all.split(',').all(invariant));
            let seen = sentences.next().is_some_and(|text| text.ends_with('.'));
            assert!(fault && breaks && seen, "{one}: {}", one.meaning());
        }
        assert!(Mutant::ALL.len() >= 32);
    }

    /// Proves that a mutant is on alone and for its thread, and that who waits for crash points hears of each.
    #[cfg(feature = "breaking")]
    #[test]
    fn they_are_switched_per_thread() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let (first, second) = (Mutant::AckBeforeSync, Mutant::LeaseIgnored);
        assert!(!mutant(first));
        set_mutant(Some(first));
        assert!(mutant(first) && !mutant(second));
        let elsewhere = std::thread::spawn(move || mutant(first)).join();
        assert!(matches!(elsewhere, Ok(false)));
        set_mutant(None);
        assert!(!mutant(first));

        let passed = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&passed);
        crash_point(CrashPoint::LogWritten);
        on_crash_point(move |point| {
            // Told of while it is told of one: not again.
            crash_point(CrashPoint::LogSynced);
            noted.borrow_mut().push(point);
        });
        crash_point(CrashPoint::LogWritten);
        crash_point(CrashPoint::VoteSaved);
        assert_eq!(
            *passed.borrow(),
            [CrashPoint::LogWritten, CrashPoint::VoteSaved]
        );
    }
}
