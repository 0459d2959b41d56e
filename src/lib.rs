//! Pure state machines for the cache memory of an LLM-serving process.

#![forbid(unsafe_code)]

pub mod arena;
pub mod chain;
pub mod demand;
pub mod fit;
pub mod sequence;
pub mod tree;
pub mod unit;
