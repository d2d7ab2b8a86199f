//! The Tidelog broker.
