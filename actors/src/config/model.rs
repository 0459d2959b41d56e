//! The `[model]` table: from layers, heads and element types to bytes of a page.

use kvtide_core::chain::{PoolKind, PoolSpec};
use kvtide_core::unit::{Bytes, Pages, Tokens};
use serde::Deserialize;

use super::document::KeyPath;
use super::error::Problem;
use super::size::Size;
use super::value::{Dtype, GrowWord, KindWord, Within};

/// A count of layers, heads, channels: bounded so that a few of them multiply within 128 bits.
type Dim = Within<1, 16_777_216>;

/// A dimension that may be absent, as the values' where they equal the keys.
type DimOrZero = Within<0, 16_777_216>;

/// `[model]` as read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawModel {
    pub(super) name: Option<String>,
    pub(super) preset: Option<String>,
    pub(super) page_tokens: Option<Within<1, 65_536>>,
    pub(super) pools: Option<Vec<RawPool>>,
}

/// One of `[[model.pools]]` as read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPool {
    name: Option<String>,
    kind: Option<KindWord>,
    grow: Option<GrowWord>,
    window_tokens: Option<Within<1, { u32::MAX }>>,
    max_pages: Option<Within<1, { u32::MAX }>>,
    entry_bytes: Option<Size>,
    layers: Option<Dim>,
    kv_heads: Option<Dim>,
    head_dim: Option<Dim>,
    k_dim: Option<Dim>,
    v_dim: Option<DimOrZero>,
    dtype: Option<Dtype>,
    kv_lora_rank: Option<Dim>,
    rope_dim: Option<DimOrZero>,
    conv: Option<RawConv>,
    ssm: Option<RawSsm>,
}

/// The convolution's part of a layer's state: the last `kernel - 1` inputs of every channel.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConv {
    channels: Option<Dim>,
    kernel: Option<Within<2, 1_024>>,
    dtype: Option<Dtype>,
}

/// The recurrence's part of a layer's state: a matrix per head.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSsm {
    heads: Option<Dim>,
    head_dim: Option<Dim>,
    state_dim: Option<Dim>,
    dtype: Option<Dtype>,
}

/// Every key of a pool's table, its sub-tables included; for the test that the reference names them all.
#[cfg(test)]
pub(super) const POOL_KEYS: &[&str] = &[
    "name",
    "kind",
    "grow",
    "window_tokens",
    "max_pages",
    "entry_bytes",
    "layers",
    "kv_heads",
    "head_dim",
    "k_dim",
    "v_dim",
    "dtype",
    "kv_lora_rank",
    "rope_dim",
    "conv",
    "ssm",
    "channels",
    "kernel",
    "heads",
    "state_dim",
];

/// A problem and the key that it is about.
pub(super) type At = (KeyPath, Problem);

/// The value, or that it is missing from the table at `path`.
pub(super) fn need<T>(
    value: Option<T>,
    path: &KeyPath,
    key: &'static str,
    expected: &'static str,
) -> Result<T, At> {
    value.ok_or_else(|| (path.clone(), Problem::Missing { key, expected }))
}

/// Refuses the first key of `keys` that is there.
fn refuse(
    path: &KeyPath,
    beside: &'static str,
    keys: &[(&'static str, Presence)],
) -> Result<(), At> {
    match keys.iter().find(|(_, presence)| *presence == Presence::There) {
        Some(&(key, _)) => Err((path.key(key), Problem::OutOfPlace { key, beside })),
        None => Ok(()),
    }
}

/// Whether a key was read.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Presence {
    There,
    Absent,
}

fn presence<T>(value: &Option<T>) -> Presence {
    if value.is_some() { Presence::There } else { Presence::Absent }
}

impl RawPool {
    /// The pool that the table at `path` describes.
    pub(super) fn check(self, path: &KeyPath, page_tokens: Tokens) -> Result<PoolSpec, At> {
        let name = need(self.name.clone(), path, "name", "a name of its own for the pool")?;
        let kind = need(self.kind, path, "kind", "\"full\", \"window\" or \"state\"")?;
        let grow = need(self.grow, path, "grow", "\"up\", \"float\" or \"down\"")?;
        let entry = match kind {
            KindWord::Full | KindWord::Window => self.token_entry(path)?,
            KindWord::State => self.slot_entry(path)?,
        };
        let kind = self.pool_kind(kind, path)?;
        let wide = page_bytes_wide(kind, entry, page_tokens);
        let page_bytes = u64::try_from(wide)
            .ok()
            .filter(|bytes| (1..=1 << 63).contains(bytes))
            .ok_or_else(|| (path.clone(), Problem::PageBytes(wide)))?;
        Ok(PoolSpec {
            name,
            kind,
            grow: grow.into(),
            page_bytes: Bytes(page_bytes),
            pages_max: self.max_pages.map(|pages| Pages(pages.0)),
        })
    }

    fn pool_kind(&self, kind: KindWord, path: &KeyPath) -> Result<PoolKind, At> {
        let window = [("window_tokens", presence(&self.window_tokens))];
        match kind {
            KindWord::Full => {
                refuse(path, "in a pool of kind \"full\"", &window)?;
                Ok(PoolKind::Full)
            }
            KindWord::State => {
                refuse(path, "in a pool of kind \"state\"", &window)?;
                Ok(PoolKind::State)
            }
            KindWord::Window => {
                let expected = "the tokens that a layer attends to";
                let window = need(self.window_tokens, path, "window_tokens", expected)?;
                Ok(PoolKind::Window { window: Tokens(window.0) })
            }
        }
    }

    /// Bytes of one token, all layers.
    fn token_entry(&self, path: &KeyPath) -> Result<u128, At> {
        let state = [("conv", presence(&self.conv)), ("ssm", presence(&self.ssm))];
        refuse(path, "in a token pool", &state)?;
        if let Some(entry) = self.entry_bytes {
            refuse(path, "beside `entry_bytes`", &[("layers", presence(&self.layers))])?;
            refuse(path, "beside `entry_bytes`", &self.attention_keys())?;
            return Ok(u128::from(entry.0));
        }
        let layers = need(self.layers, path, "layers", "the number of layers, or `entry_bytes`")?;
        let dtype = need(self.dtype, path, "dtype", "the element type")?;
        let elements = match self.kv_lora_rank {
            Some(rank) => self.latent_elements(rank, path)?,
            None => self.head_elements(path)?,
        };
        Ok(u128::from(layers.0) * elements * u128::from(dtype.bytes()))
    }

    /// Elements of one token in one layer with a compressed latent (MLA): the latent and the rotary key.
    fn latent_elements(&self, rank: Dim, path: &KeyPath) -> Result<u128, At> {
        let heads = [
            ("kv_heads", presence(&self.kv_heads)),
            ("head_dim", presence(&self.head_dim)),
            ("k_dim", presence(&self.k_dim)),
            ("v_dim", presence(&self.v_dim)),
        ];
        refuse(path, "beside `kv_lora_rank`", &heads)?;
        let rope = need(self.rope_dim, path, "rope_dim", "the rotary part of the key, or 0")?;
        Ok(u128::from(rank.0) + u128::from(rope.0))
    }

    /// Elements of one token in one layer: the keys and values of all heads.
    fn head_elements(&self, path: &KeyPath) -> Result<u128, At> {
        let rope = [("rope_dim", presence(&self.rope_dim))];
        refuse(path, "without `kv_lora_rank`", &rope)?;
        let heads = need(self.kv_heads, path, "kv_heads", "the number of key-value heads")?;
        let (k, v) = if let Some(dim) = self.head_dim {
            let dims = [("k_dim", presence(&self.k_dim)), ("v_dim", presence(&self.v_dim))];
            refuse(path, "beside `head_dim`", &dims)?;
            (dim.0, dim.0)
        } else {
            let expected = "the width of a key, or `head_dim` for both";
            let k = need(self.k_dim, path, "k_dim", expected)?;
            let v = need(
                self.v_dim,
                path,
                "v_dim",
                "the width of a value, 0 if the key serves as value",
            )?;
            (k.0, v.0)
        };
        Ok(u128::from(heads.0) * (u128::from(k) + u128::from(v)))
    }

    /// Bytes of one slot, all layers.
    fn slot_entry(&self, path: &KeyPath) -> Result<u128, At> {
        refuse(path, "in a pool of kind \"state\"", &self.attention_keys())?;
        if let Some(entry) = self.entry_bytes {
            let parts = [
                ("layers", presence(&self.layers)),
                ("conv", presence(&self.conv)),
                ("ssm", presence(&self.ssm)),
            ];
            refuse(path, "beside `entry_bytes`", &parts)?;
            return Ok(u128::from(entry.0));
        }
        let layers = need(self.layers, path, "layers", "the number of layers, or `entry_bytes`")?;
        let conv = self.conv.as_ref().map(|conv| conv.bytes(&path.key("conv"))).transpose()?;
        let ssm = self.ssm.as_ref().map(|ssm| ssm.bytes(&path.key("ssm"))).transpose()?;
        if conv.is_none() && ssm.is_none() {
            return need(None, path, "conv", "a table `conv`, a table `ssm`, or both");
        }
        let layer = conv.unwrap_or(0).saturating_add(ssm.unwrap_or(0));
        Ok(u128::from(layers.0).saturating_mul(layer))
    }

    /// Keys that describe attention.
    fn attention_keys(&self) -> [(&'static str, Presence); 7] {
        [
            ("kv_heads", presence(&self.kv_heads)),
            ("head_dim", presence(&self.head_dim)),
            ("k_dim", presence(&self.k_dim)),
            ("v_dim", presence(&self.v_dim)),
            ("dtype", presence(&self.dtype)),
            ("kv_lora_rank", presence(&self.kv_lora_rank)),
            ("rope_dim", presence(&self.rope_dim)),
        ]
    }
}

impl RawConv {
    /// Bytes in one layer.
    fn bytes(&self, path: &KeyPath) -> Result<u128, At> {
        let channels = need(self.channels, path, "channels", "the number of channels")?;
        let kernel = need(self.kernel, path, "kernel", "the kernel's width, at least 2")?;
        let dtype = need(self.dtype, path, "dtype", "the element type")?;
        Ok(u128::from(channels.0) * u128::from(kernel.0 - 1) * u128::from(dtype.bytes()))
    }
}

impl RawSsm {
    /// Bytes in one layer.
    fn bytes(&self, path: &KeyPath) -> Result<u128, At> {
        let heads = need(self.heads, path, "heads", "the number of heads")?;
        let head = need(self.head_dim, path, "head_dim", "the width of a head")?;
        let state = need(self.state_dim, path, "state_dim", "the width of a head's state")?;
        let dtype = need(self.dtype, path, "dtype", "the element type")?;
        let dims = [heads.0, head.0, state.0].map(u128::from);
        Ok(dims.iter().product::<u128>() * u128::from(dtype.bytes()))
    }
}

/// Bytes of one page whose entry (a token's or a slot's, all layers) has `entry` bytes; none, if past 64 bits.
#[must_use]
pub fn page_bytes(kind: PoolKind, entry: Bytes, page_tokens: Tokens) -> Option<Bytes> {
    u64::try_from(page_bytes_wide(kind, u128::from(entry.0), page_tokens)).ok().map(Bytes)
}

/// The same in 128 bits, held at the top of them.
fn page_bytes_wide(kind: PoolKind, entry: u128, page_tokens: Tokens) -> u128 {
    match kind {
        PoolKind::Full | PoolKind::Window { .. } => entry.saturating_mul(u128::from(page_tokens.0)),
        PoolKind::State => entry,
    }
}
