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
                match self { $(Self::$variant => concat!($($doc),+),)+ }
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
