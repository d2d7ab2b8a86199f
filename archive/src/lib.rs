//! tidelog-archive
