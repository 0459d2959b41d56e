//! kvtide: one byte arena for every kind of cache that an LLM-serving process keeps.

#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod workload;
