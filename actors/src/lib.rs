//! kvtide: one byte arena for every kind of cache that an LLM-serving process keeps.

#![deny(unsafe_code)]

/// The README's example, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

mod allocator;
pub mod cli;
mod compactor;
pub mod config;
pub mod device;
pub mod error;
pub mod handle;
pub mod message;
mod radix;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod service;
pub mod telemetry;
pub mod workload;
