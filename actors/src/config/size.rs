//! Sizes in bytes, as people write them.

use std::fmt;

use kvtide_core::unit::Bytes;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A count of bytes, written as an integer, or as text with a unit: `"64 GiB"`, `"1.5 GB"`.
///
/// KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB are powers of 1000. Units whose base is not said, such
/// as `64G`, are refused. A fraction must come to whole bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SizeError {
    /// No digits, or something after the unit.
    #[error("expected a size such as 512, \"64 MiB\" or \"1.5 GB\"")]
    Malformed,
    /// A unit that may be a power of 1024 or of 1000.
    #[error(
        "the unit of `{text}` is ambiguous: write `{digits} {prefix}iB` (powers of 1024) or `{digits} {prefix}B` (powers of 1000)"
    )]
    Ambiguous {
        /// The text.
        text: String,
        /// Its number.
        digits: String,
        /// K, M, G or T.
        prefix: char,
    },
    /// A unit that is none.
    #[error(
        "unknown unit `{0}`, expected B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)"
    )]
    UnknownUnit(String),
    /// A fraction of a byte.
    #[error("`{0}` is not a whole number of bytes")]
    Fraction(String),
    /// More than 64 bits of bytes.
    #[error("`{0}` is more than {max} bytes", max = u64::MAX)]
    Overflow(String),
}

impl Size {
    /// Reads a size: digits, perhaps a decimal fraction, and a unit. Digits alone are bytes.
    ///
    /// # Errors
    /// Every [`SizeError`].
    pub fn parse(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(SizeError::Malformed);
        }
        let scale = unit_bytes(text, digits, unit.trim())?;
        let overflow = || SizeError::Overflow(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| overflow())?;
        let whole = whole.checked_mul(scale).ok_or_else(overflow)?;
        let fraction = fraction_bytes(text, fraction.trim_end_matches('0'), scale)?;
        whole.checked_add(fraction).map(Size).ok_or_else(overflow)
    }

    /// As the quantity that the core counts in.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

/// Bytes of one `unit`; `text` and `digits` are for the error only.
fn unit_bytes(text: &str, digits: &str, unit: &str) -> Result<u64, SizeError> {
    match unit {
        "" | "B" => Ok(1),
        "KiB" => Ok(1 << 10),
        "MiB" => Ok(1 << 20),
        "GiB" => Ok(1 << 30),
        "TiB" => Ok(1 << 40),
        "KB" | "kB" => Ok(1_000),
        "MB" => Ok(1_000_000),
        "GB" => Ok(1_000_000_000),
        "TB" => Ok(1_000_000_000_000),
        "K" | "k" | "M" | "m" | "G" | "g" | "T" | "t" => Err(SizeError::Ambiguous {
            text: text.to_owned(),
            digits: digits.to_owned(),
            prefix: unit.chars().next().unwrap_or('K').to_ascii_uppercase(),
        }),
        other => Err(SizeError::UnknownUnit(other.to_owned())),
    }
}

/// `0.fraction` times `scale`, if that is whole.
fn fraction_bytes(text: &str, fraction: &str, scale: u64) -> Result<u64, SizeError> {
    if fraction.is_empty() {
        return Ok(0);
    }
    let odd = || SizeError::Fraction(text.to_owned());
    // 10^18 and a unit of 2^40 multiply to less than 2^128.
    let power = u32::try_from(fraction.len()).ok().filter(|&power| power <= 18).ok_or_else(odd)?;
    let numerator: u64 = fraction.parse().map_err(|_| odd())?;
    let (product, denominator) = (u128::from(numerator) * u128::from(scale), 10u128.pow(power));
    if product.is_multiple_of(denominator) {
        // Below `scale`, since the fraction is below one.
        u64::try_from(product / denominator).map_err(|_| odd())
    } else {
        Err(odd())
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a size: bytes as an integer of at least 0, or text such as \"64 GiB\" or \"64 GB\"",
        )
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes)
            .map(Size)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        Size::parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: u64) {
        assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
    }

    #[test]
    fn units_are_powers_of_1024_or_of_1000_as_they_say() {
        check("0", 0);
        check("512", 512);
        check("512 B", 512);
        check("1KiB", 1024);
        check("64 MiB", 64 << 20);
        check("64 GiB", 64 << 30);
        check("2 TiB", 2 << 40);
        check("64 GB", 64_000_000_000);
        check("3 KB", 3_000);
        check("3 kB", 3_000);
        check(" 7 TB ", 7_000_000_000_000);
    }

    #[test]
    fn fractions_must_come_to_whole_bytes() {
        check("1.5 GiB", 3 << 29);
        check("0.25 KiB", 256);
        check("1.0", 1);
        check("1.001 KB", 1001);
        assert_eq!(Size::parse("1.001 KiB"), Err(SizeError::Fraction("1.001 KiB".into())));
        assert_eq!(Size::parse("0.5"), Err(SizeError::Fraction("0.5".into())));
        assert_eq!(
            Size::parse("0.0000000000000000001 TiB"),
            Err(SizeError::Fraction("0.0000000000000000001 TiB".into()))
        );
    }

    #[test]
    fn a_unit_without_its_base_names_both_readings() {
        let message = Size::parse("64G").unwrap_err().to_string();
        assert!(message.contains("64 GiB") && message.contains("64 GB"), "{message}");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", ".5 GiB", "5. GiB", "1.2.3", "-1", "1e9", "64 gib", "64 GiB extra"]
        {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        check("18446744073709551615", u64::MAX);
        check("16777215 TiB", 16_777_215 << 40);
        for text in ["18446744073709551616", "16777216 TiB", "99999999999999999999 GB"] {
            assert!(matches!(Size::parse(text), Err(SizeError::Overflow(_))), "{text}");
        }
    }
}
