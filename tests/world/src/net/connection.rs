//! One connection: two ends, and for each what it has sent.
//!
//! Owns: order, the send window, half close, what an end sees when. Pure: times go in, no clock is read.
//! Not here: whether and how fast the path carries (`wire`), tasks (`stream`).
//! Spec: docs/simulation.md

use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

/// As many bytes of one direction are on the way or unread; then writers wait.
pub(super) const WINDOW: usize = 512 * 1024;
/// The most bytes of one segment: what latency, loss and resets are drawn for.
pub(super) const SEGMENT: usize = 64 * 1024;
/// A connection whose bytes are not acknowledged for so long is given up by their sender.
pub(super) const GIVE_UP: Duration = Duration::from_secs(5 * 60);

/// Which end: the one that dialled is 0, the one that accepted is 1.
pub(super) type Side = usize;

pub(super) struct Connection {
    pub(super) ends: [End; 2],
}

pub(super) struct End {
    pub(super) host: IpAddr,
    /// What the other end knows it by: the host's address, or its loopback address.
    pub(super) address: SocketAddr,
    /// The process still holds it.
    pub(super) open: bool,
    /// From when on every call fails, and how.
    pub(super) broken: Option<(Duration, ErrorKind)>,
    /// It gave up by itself just now.
    pub(super) gave_up: bool,
    pub(super) sent: Pipe,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

/// What one end has sent and the other has not read.
#[derive(Default)]
pub(super) struct Pipe {
    /// In order. Those that are held are behind those on the way.
    pub(super) segments: VecDeque<Segment>,
    /// Bytes of the window in use: in segments, and read but not acknowledged.
    used: usize,
    /// Bytes that were read while no acknowledgement came through.
    unacknowledged: usize,
    pub(super) last_arrival: Duration,
    pub(super) finished: bool,
    ended: bool,
    /// Since when something of this has gone without acknowledgement because of a cut or a dead machine.
    pub(super) stuck_since: Option<Duration>,
}

pub(super) struct Segment {
    /// `None`: held at the sender.
    pub(super) arrives: Option<Duration>,
    pub(super) sent: Duration,
    /// Empty for the end of the stream.
    pub(super) bytes: Bytes,
}

/// What a call finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// So many bytes were read or taken; 0 when reading is the end.
    Bytes(usize),
    Error(ErrorKind),
    /// Nothing before this time, or before it is woken.
    Nothing(Option<Duration>),
}

impl End {
    pub(super) fn new(host: IpAddr, address: SocketAddr, first_arrival: Duration) -> Self {
        Self {
            host,
            address,
            open: true,
            broken: None,
            gave_up: false,
            sent: Pipe {
                last_arrival: first_arrival,
                ..Pipe::default()
            },
            reader: None,
            writer: None,
        }
    }

    /// Nobody takes what arrives for it: its system answers with a reset.
    pub(super) fn is_gone(&self, now: Duration) -> bool {
        !self.open || self.broken.is_some_and(|(at, _)| at <= now)
    }

    /// Breaks at `at`, if it does not before.
    pub(super) fn break_at(&mut self, at: Duration, kind: ErrorKind) {
        if self.broken.is_none_or(|(before, _)| at < before) {
            self.broken = Some((at, kind));
        }
    }

    /// Its bytes were not acknowledged for too long.
    pub(super) fn give_up(&mut self, now: Duration) {
        self.break_at(now, ErrorKind::TimedOut);
        self.sent.clear();
        self.gave_up = true;
    }

    /// The error at `now`, and when the next one is due.
    fn state(&mut self, now: Duration) -> (Option<ErrorKind>, Option<Duration>) {
        let gives_up = self.sent.stuck_since.map(|since| since + GIVE_UP);
        if gives_up.is_some_and(|at| at <= now) {
            self.give_up(now);
        }
        match self.broken {
            Some((at, kind)) if at <= now => (Some(kind), None),
            broken => (None, earlier(broken.map(|(at, _)| at), gives_up)),
        }
    }
}

impl Connection {
    /// Reads at `side` into `into`. `acknowledged`: whether the sender hears of it.
    pub(super) fn read(
        &mut self,
        side: Side,
        now: Duration,
        into: &mut tokio::io::ReadBuf<'_>,
        acknowledged: bool,
    ) -> Found {
        let [first, second] = &mut self.ends;
        let (end, peer) = if side == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let (error, next) = end.state(now);
        if let Some(kind) = error {
            return Found::Error(kind);
        }
        match peer.sent.take(now, into, acknowledged) {
            Found::Nothing(at) => Found::Nothing(earlier(at, next)),
            found => found,
        }
    }

    /// How many bytes `side` may send now. They are to be pushed.
    pub(super) fn writable(&mut self, side: Side, now: Duration, wanted: usize) -> Found {
        let end = &mut self.ends[side];
        let (error, next) = end.state(now);
        if let Some(kind) = error {
            return Found::Error(kind);
        }
        if end.sent.finished {
            return Found::Error(ErrorKind::BrokenPipe);
        }
        match wanted
            .min(SEGMENT)
            .min(WINDOW.saturating_sub(end.sent.used))
        {
            0 if wanted > 0 => Found::Nothing(next),
            room => Found::Bytes(room),
        }
    }

    /// Bytes that `side` wants to send, or the end of them. Held until they are sent on their way.
    pub(super) fn push(&mut self, side: Side, now: Duration, bytes: Bytes) {
        let sent = &mut self.ends[side].sent;
        sent.finished |= bytes.is_empty();
        sent.used += bytes.len();
        sent.segments.push_back(Segment {
            arrives: None,
            sent: now,
            bytes,
        });
    }

    pub(super) fn both_closed(&self) -> bool {
        self.ends.iter().all(|end| !end.open)
    }
}

impl Pipe {
    fn take(
        &mut self,
        now: Duration,
        into: &mut tokio::io::ReadBuf<'_>,
        acknowledged: bool,
    ) -> Found {
        let before = into.filled().len();
        while let Some(head) = self.segments.front_mut() {
            if head.arrives.is_none_or(|at| at > now) || into.remaining() == 0 {
                break;
            }
            let count = head.bytes.len().min(into.remaining());
            into.put_slice(&head.bytes[..count]);
            head.bytes.advance(count);
            self.ended |= count == 0;
            if head.bytes.is_empty() {
                self.segments.pop_front();
            }
        }
        let count = into.filled().len() - before;
        if acknowledged {
            self.used -= count;
        } else {
            self.unacknowledged += count;
        }
        if count > 0 || self.ended || into.remaining() == 0 {
            return Found::Bytes(count);
        }
        Found::Nothing(self.segments.front().and_then(|head| head.arrives))
    }

    /// Holds what has not arrived at `now`. How many segments.
    pub(super) fn hold(&mut self, now: Duration) -> u64 {
        let mut count = 0;
        for segment in &mut self.segments {
            if segment.arrives.is_some_and(|at| at > now) {
                segment.arrives = None;
                count += 1;
            }
        }
        if count > 0 {
            self.last_arrival = now;
        }
        count
    }

    /// Drops what is held: its sender's machine is gone.
    pub(super) fn drop_held(&mut self) {
        while self
            .segments
            .back()
            .is_some_and(|last| last.arrives.is_none())
        {
            self.segments.pop_back();
        }
    }

    /// Drops all that has not been read.
    pub(super) fn clear(&mut self) {
        self.segments.clear();
        self.used = 0;
        self.unacknowledged = 0;
        self.stuck_since = None;
    }

    pub(super) fn first_held(&self) -> Option<Duration> {
        let held = self
            .segments
            .iter()
            .find(|segment| segment.arrives.is_none());
        held.map(|segment| segment.sent)
    }

    /// Whether bytes have arrived that nobody read.
    pub(super) fn has_unread(&self, now: Duration) -> bool {
        let head = self.segments.front();
        head.is_some_and(|head| !head.bytes.is_empty() && head.arrives.is_some_and(|at| at <= now))
    }

    /// When the first bytes that are on the way arrive.
    pub(super) fn next_arrival(&self, now: Duration) -> Option<Duration> {
        let coming = |segment: &Segment| {
            segment
                .arrives
                .filter(|at| *at > now && !segment.bytes.is_empty())
        };
        self.segments.iter().find_map(coming)
    }

    /// The path is whole again: acknowledgements come through.
    pub(super) fn acknowledge(&mut self) {
        self.stuck_since = None;
        self.used -= std::mem::take(&mut self.unacknowledged);
    }
}

pub(super) fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
