//! The archive from outside: buckets as brokers leave them in, tables as readers find them out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

mod bucket;
mod content;
mod damage;
mod exact;
mod faults;
mod golden;
mod place;
mod readers;
mod table;
