//! The radix actor: sole owner of the tree.
//!
//! It answers the allocator only, one message a question, and asks nobody. It knows which pages are cached and in use,
//! not where they lie.

use kameo::message::{Context, Message};
use kameo::{Actor, Reply};
use kvtide_core::arena::GatedView;
use kvtide_core::demand::Demand;
use kvtide_core::fit::Geometry;
use kvtide_core::tree::{
    Counters, Detached, Lock, Match, Namespace, OwnPage, PlanRefusal, PlanRequest, Prefer,
    Published, Quota, ReclaimPlan, SessionId, Tree, User,
};
use kvtide_core::unit::{Pages, PerPool, PoolId, Token, Tokens, VirtId};

/// Owns the tree.
#[derive(Actor)]
pub(crate) struct Radix {
    pub(crate) tree: Tree,
}

/// An answer that is one value of the core crate.
#[derive(Reply)]
pub(crate) struct Answer<T: Send + 'static>(pub(crate) T);

/// Match a prompt and lock what matched. Nothing is marked as used before it is ([`Used`]).
pub(crate) struct Open {
    pub(crate) namespace: Namespace,
    pub(crate) tokens: Vec<Token>,
    pub(crate) user: User,
}

/// What a match locked is used.
pub(crate) struct Used(pub(crate) Lock);

/// End a session; the answer says whether it held anything.
pub(crate) struct CloseSession {
    pub(crate) namespace: Namespace,
    pub(crate) session: SessionId,
}

/// Match a prompt and touch nothing.
pub(crate) struct Peek {
    pub(crate) namespace: Namespace,
    pub(crate) tokens: Vec<Token>,
}

/// Give up the part of a lock's windows that decode left behind.
pub(crate) struct Shed {
    pub(crate) lock: Lock,
    pub(crate) computed: Tokens,
}

/// Move a lock back along its path, for a sequence that drops tokens.
pub(crate) struct LockBack {
    pub(crate) lock: Lock,
    pub(crate) boundary: Pages,
    pub(crate) computed: Tokens,
}

/// Let a lock go.
pub(crate) struct Unlock(pub(crate) Vec<Lock>);

/// Lock the same place a second time, for a lease.
pub(crate) struct LockAgain(pub(crate) Lock);

/// Move a lease's hold to where its sequence's lock is now.
pub(crate) struct LockOn {
    pub(crate) held: Lock,
    pub(crate) lock: Lock,
}

/// Whether a checkpoint at the end of `tokens`, on from the lock's boundary, is there already.
pub(crate) struct HasState {
    pub(crate) lock: Lock,
    pub(crate) tokens: Vec<Token>,
}

/// Add computed pages to the tree and move the lock to their end.
pub(crate) struct Publish {
    pub(crate) lock: Lock,
    pub(crate) tokens: Vec<Token>,
    pub(crate) pages: Vec<OwnPage>,
    pub(crate) states: Option<Vec<VirtId>>,
}

/// Plan which cached pages to evict for a demand; changes nothing.
pub(crate) struct PlanReclaim {
    pub(crate) geometry: Geometry,
    pub(crate) demand: Demand,
    pub(crate) gated: Option<GatedView>,
    pub(crate) prefer: Prefer,
    pub(crate) quota: Quota,
}

/// Take a plan's victims out of the tree, ready to be put back.
pub(crate) struct Detach(pub(crate) ReclaimPlan);

/// Put victims back, all but those `lost`.
pub(crate) struct Attach {
    pub(crate) detached: Detached,
    pub(crate) lost: Vec<(PoolId, VirtId)>,
}

/// Victims are gone for good.
pub(crate) struct Evict(pub(crate) Detached);

/// Drop everything that is not locked.
pub(crate) struct Flush;

/// The tree's totals.
pub(crate) struct Count;

/// Check every invariant of the tree, and list the pages that it owns.
pub(crate) struct Audit;

/// A prompt's match, and the hold on it.
#[derive(Reply)]
pub(crate) struct Openings {
    pub(crate) tokens: Vec<Token>,
    pub(crate) lock: Lock,
    pub(crate) matched: Match,
}

/// Whether a state is there; the lock comes back.
#[derive(Reply)]
pub(crate) struct StateFound {
    pub(crate) lock: Lock,
    pub(crate) found: bool,
}

/// What an audit found.
#[derive(Reply)]
pub(crate) struct Audited {
    pub(crate) verdict: Result<(), String>,
    pub(crate) locked: PerPool<Pages>,
    pub(crate) owned: Vec<(PoolId, VirtId)>,
}

impl Message<Open> for Radix {
    type Reply = Openings;

    async fn handle(&mut self, msg: Open, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        let Open { namespace, tokens, user } = msg;
        let (lock, matched) = self.tree.lock_match(&namespace, &tokens);
        Openings { tokens, lock: lock.used_by(user), matched }
    }
}

impl Message<Used> for Radix {
    type Reply = Answer<Lock>;

    async fn handle(&mut self, msg: Used, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        self.tree.mark_used(&msg.0);
        Answer(msg.0)
    }
}

impl Message<CloseSession> for Radix {
    type Reply = Answer<bool>;

    async fn handle(
        &mut self,
        msg: CloseSession,
        _: &mut Context<Self, Self::Reply>,
    ) -> Self::Reply {
        Answer(self.tree.close_session(&msg.namespace, &msg.session))
    }
}

impl Message<Peek> for Radix {
    type Reply = Answer<Match>;

    async fn handle(&mut self, msg: Peek, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.peek(&msg.namespace, &msg.tokens))
    }
}

impl Message<Shed> for Radix {
    type Reply = Answer<Lock>;

    async fn handle(&mut self, msg: Shed, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        let mut lock = msg.lock;
        self.tree.shed(&mut lock, msg.computed);
        Answer(lock)
    }
}

impl Message<LockBack> for Radix {
    type Reply = Answer<Result<Lock, (Lock, Pages)>>;

    async fn handle(&mut self, msg: LockBack, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.lock_back(msg.lock, msg.boundary, msg.computed))
    }
}

impl Message<Unlock> for Radix {
    type Reply = ();

    async fn handle(&mut self, msg: Unlock, _: &mut Context<Self, Self::Reply>) {
        for lock in msg.0 {
            self.tree.unlock(lock);
        }
    }
}

impl Message<LockAgain> for Radix {
    type Reply = Answer<(Lock, Lock)>;

    async fn handle(&mut self, msg: LockAgain, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        let second = self.tree.lock_again(&msg.0);
        Answer((msg.0, second))
    }
}

impl Message<LockOn> for Radix {
    type Reply = Answer<(Lock, Lock)>;

    async fn handle(&mut self, msg: LockOn, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        let moved = self.tree.lock_on(msg.held, &msg.lock);
        Answer((msg.lock, moved))
    }
}

impl Message<HasState> for Radix {
    type Reply = StateFound;

    async fn handle(&mut self, msg: HasState, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        let found = self.tree.missing_states(&msg.lock, &msg.tokens).is_empty();
        StateFound { lock: msg.lock, found }
    }
}

impl Message<Publish> for Radix {
    type Reply = Answer<Published>;

    async fn handle(&mut self, msg: Publish, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.publish(msg.lock, &msg.tokens, &msg.pages, msg.states.as_deref()))
    }
}

impl Message<PlanReclaim> for Radix {
    type Reply = Answer<Result<ReclaimPlan, PlanRefusal>>;

    async fn handle(
        &mut self,
        msg: PlanReclaim,
        _: &mut Context<Self, Self::Reply>,
    ) -> Self::Reply {
        Answer(self.tree.plan(&PlanRequest {
            geometry: msg.geometry,
            demand: msg.demand,
            pinned: msg.gated.as_ref().map(|view| view as _),
            prefer: msg.prefer,
            quota: msg.quota,
        }))
    }
}

impl Message<Detach> for Radix {
    type Reply = Answer<Result<Detached, ReclaimPlan>>;

    async fn handle(&mut self, msg: Detach, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.detach(msg.0))
    }
}

impl Message<Evict> for Radix {
    type Reply = ();

    async fn handle(&mut self, msg: Evict, _: &mut Context<Self, Self::Reply>) {
        // Their ids are the allocator's to free: it did so in the same commit.
        let _ = self.tree.evict(msg.0);
    }
}

impl Message<Attach> for Radix {
    type Reply = Answer<Vec<(PoolId, VirtId)>>;

    async fn handle(&mut self, msg: Attach, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.attach(msg.detached, &msg.lost))
    }
}

impl Message<Flush> for Radix {
    type Reply = Answer<PerPool<Vec<VirtId>>>;

    async fn handle(&mut self, _: Flush, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.flush())
    }
}

impl Message<Count> for Radix {
    type Reply = Answer<Counters>;

    async fn handle(&mut self, _: Count, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Answer(self.tree.counters())
    }
}

impl Message<Audit> for Radix {
    type Reply = Audited;

    async fn handle(&mut self, _: Audit, _: &mut Context<Self, Self::Reply>) -> Self::Reply {
        Audited {
            verdict: self.tree.check().map_err(|violation| violation.to_string()),
            locked: self.tree.counters().locked,
            owned: self.tree.owned(),
        }
    }
}
