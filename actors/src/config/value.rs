//! Values of single keys: words, bounded numbers, durations. Each checks itself where it is read.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use kvtide_core::chain::Grow;
use kvtide_core::unit::Bytes;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::size::Size;

/// A value that is written as one of a few words.
pub(super) trait Word: Copy + 'static {
    /// The words of this build, in the order of the reference.
    const WORDS: &'static [(&'static str, Self)];
    /// Words of the design that this build has no code for.
    const LATER: &'static [&'static str];
}

/// Declares an enum that is read from words.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* } later [$($later:literal),*]
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// As it is written in a configuration.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl Word for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $name::$variant)),*];
            const LATER: &'static [&'static str] = &[$($later),*];
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(WordVisitor(PhantomData))
            }
        }
    };
}

words! {
    /// When holes are closed.
    Compaction {
        /// When a demand needs the bytes, or a pass is asked for.
        Lazy = "lazy",
        /// At every free.
        Eager = "eager",
    } later []
}

words! {
    /// In which order cached pages of equal standing go.
    Policy {
        /// Least recently used first.
        Lru = "lru",
        /// Fewest matches first.
        Lfu = "lfu",
        /// First cached first.
        Fifo = "fifo",
        /// Most recently used first.
        Mru = "mru",
        /// Last cached first.
        Filo = "filo",
        /// Lowest priority first.
        Priority = "priority",
        /// Rarely matched first.
        Slru = "slru",
        /// What a next prompt can do without first.
        Tlru = "tlru",
    } later []
}

words! {
    /// Which side of a tie gives first.
    Prefer {
        /// Full pages.
        Full = "full",
        /// Window pages.
        Window = "window",
    } later []
}

words! {
    /// Whether a running sequence keeps the state of its last page boundary.
    Track {
        /// It does not: a sequence that ends inside a page publishes no state.
        Off = "off",
    } later ["last"]
}

words! {
    /// What holds the bytes.
    Engine {
        /// Host memory, copies by the CPU.
        Host = "host",
        /// Nothing: bytes are counted, not kept.
        Accounting = "accounting",
    } later ["cuda"]
}

words! {
    /// What a pool stores, as written; the window's length is a key of its own.
    KindWord {
        /// Full-attention KV.
        Full = "full",
        /// Sliding-window KV.
        Window = "window",
        /// Recurrent state.
        State = "state",
    } later []
}

words! {
    /// Where a pool lies, as written.
    GrowWord {
        /// From the bottom.
        Up = "up",
        /// In between.
        Float = "float",
        /// From the top.
        Down = "down",
    } later []
}

words! {
    /// Element type of a cache.
    Dtype {
        /// 2 bytes.
        Bf16 = "bf16",
        /// 2 bytes.
        Fp16 = "fp16",
        /// 4 bytes.
        Fp32 = "fp32",
        /// 1 byte; scales kept elsewhere are not counted.
        Fp8 = "fp8",
        /// 1 byte; scales kept elsewhere are not counted.
        Int8 = "int8",
    } later []
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::Fp32 => 4,
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp8 | Dtype::Int8 => 1,
        }
    }
}

impl From<GrowWord> for Grow {
    fn from(word: GrowWord) -> Self {
        match word {
            GrowWord::Up => Grow::Up,
            GrowWord::Float => Grow::Float,
            GrowWord::Down => Grow::Down,
        }
    }
}

struct WordVisitor<T>(PhantomData<T>);

impl<T: Word> Visitor<'_> for WordVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&expected::<T>())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let known = expected::<T>();
        Err(if T::LATER.contains(&text) {
            E::custom(format_args!("`{text}` is not supported yet, expected {known}"))
        } else {
            E::custom(format_args!("`{text}` is unknown, expected {known}"))
        })
    }
}

fn expected<T: Word>() -> String {
    let words: Vec<_> = T::WORDS.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    words.join(" or ")
}

/// The most that one allocation may reclaim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Quota {
    /// No bound.
    None,
    /// The demand's own tokens per token pool, and the state slots whose bytes cover the demand's.
    Demand,
    /// So many bytes.
    Bytes(Bytes),
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quota::None => f.write_str("none"),
            Quota::Demand => f.write_str("demand"),
            Quota::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

/// A size, or one of a few words in its place.
struct OrSize<T: 'static>(&'static [(&'static str, T)], fn(Size) -> Option<T>, &'static str);

impl<T: Copy + 'static> Visitor<'_> for OrSize<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.2)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        let size = u64::try_from(value).ok().map(Size);
        size.and_then(self.1).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        self.1(Size(value)).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        if let Some((_, value)) = self.0.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        if !text.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            return Err(E::custom(format_args!("`{text}` is unknown, expected {}", self.2)));
        }
        let size = Size::parse(text).map_err(E::custom)?;
        self.1(size).ok_or_else(|| E::custom(format_args!("`{text}`: expected {}", self.2)))
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OrSize(
            &[("none", Quota::None), ("demand", Quota::Demand)],
            |size| (size.0 > 0).then(|| Quota::Bytes(size.bytes())),
            "\"none\", \"demand\" or a size of at least 1 byte",
        ))
    }
}

/// Bytes of the sink, or `"auto"`: the largest page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sink(pub Option<Bytes>);

impl<'de> Deserialize<'de> for Sink {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OrSize(
            &[("auto", Sink(None))],
            |size| Some(Sink(Some(size.bytes()))),
            "\"auto\" or a size",
        ))
    }
}

/// The cap on state checkpoints per path; this build knows `"none"` only.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathCap;

impl From<PathCap> for Option<u32> {
    fn from(PathCap: PathCap) -> Self {
        None
    }
}

impl<'de> Deserialize<'de> for PathCap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapVisitor;
        impl Visitor<'_> for CapVisitor {
            type Value = PathCap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\" (a number is not supported yet)")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PathCap, E> {
                match text {
                    "none" => Ok(PathCap),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(CapVisitor)
    }
}

/// A number of at least `MIN` and at most `MAX`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within<const MIN: u32, const MAX: u32>(pub u32);

/// Milliseconds, at least `MIN` and at most `MAX`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Millis<const MIN: u32, const MAX: u32>(Within<MIN, MAX>);

impl<const MIN: u32, const MAX: u32> From<Within<MIN, MAX>> for u32 {
    fn from(number: Within<MIN, MAX>) -> Self {
        number.0
    }
}

impl<const MIN: u32, const MAX: u32> From<Millis<MIN, MAX>> for Duration {
    fn from(millis: Millis<MIN, MAX>) -> Self {
        Duration::from_millis(u64::from(millis.0.0))
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WithinVisitor)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Millis<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Within::deserialize(deserializer).map(Millis)
    }
}

struct WithinVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for WithinVisitor<MIN, MAX> {
    type Value = Within<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match u32::try_from(number) {
            Ok(value) if (MIN..=MAX).contains(&value) => Ok(Within(value)),
            _ => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        match u32::try_from(number) {
            Ok(value) if (MIN..=MAX).contains(&value) => Ok(Within(value)),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
        }
    }
}
