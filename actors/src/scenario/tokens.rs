//! Lists of tokens as scenarios write them: runs, expanded only when asked.

use kvtide_core::unit::Token;

use super::json::Node;
use super::place::ScenarioError;

/// A list of tokens, held as runs of consecutive ones.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenList {
    runs: Vec<Run>,
    len: u64,
}

/// `count` tokens, each one more than the last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Run {
    start: Token,
    count: u32,
}

impl TokenList {
    /// The most tokens that one list may have: 256 MiB when expanded.
    pub const LEN_MAX: u64 = 1 << 26;

    /// How many tokens there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize // at most `LEN_MAX`
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens in order.
    pub fn iter(&self) -> impl Iterator<Item = Token> {
        self.runs.iter().flat_map(|run| (0..run.count).map(move |index| run.start + index))
    }

    /// All tokens at once.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(self.len());
        tokens.extend(self.iter());
        tokens
    }

    pub(super) fn parse(node: Node<'_>) -> Result<Self, ScenarioError> {
        let mut list = TokenList::default();
        if node.is_array() {
            for item in node.array()? {
                list.push(node, Run::parse(item)?)?;
            }
        } else if node.is_object() {
            list.push(node, Run::parse(node)?)?;
        } else {
            return Err(node.wrong("a list of tokens, or {\"start\":…,\"count\":…}"));
        }
        Ok(list)
    }

    fn push(&mut self, node: Node<'_>, run: Run) -> Result<(), ScenarioError> {
        self.len += u64::from(run.count);
        if self.len > TokenList::LEN_MAX {
            return Err(node.wrong(format!("at most {} tokens in all", TokenList::LEN_MAX)));
        }
        match self.runs.last_mut() {
            // The sum cannot overflow: the list's length bounds it.
            Some(last) if last.start.checked_add(last.count) == Some(run.start) => {
                last.count += run.count;
            }
            _ if run.count == 0 => {}
            _ => self.runs.push(run),
        }
        Ok(())
    }
}

impl Run {
    fn parse(node: Node<'_>) -> Result<Self, ScenarioError> {
        if !node.is_object() {
            let start = node.u32()?;
            return Ok(Run { start, count: 1 });
        }
        let fields = node.object()?.only(&[&["start", "count"]])?;
        let start = fields.need("start")?.u32()?;
        let count = fields.need("count")?;
        let room = u64::from(u32::MAX) - u64::from(start) + 1;
        match count.u32()? {
            fits if u64::from(fits) <= room => Ok(Run { start, count: fits }),
            _ => Err(count.wrong(format!("at most {room} tokens from {start} on"))),
        }
    }
}
