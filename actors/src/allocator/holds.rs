//! Reservations, leases and gates: holds on pages that are not a sequence's.

use kameo::actor::ActorRef;
use kvtide_core::demand::AnyDemand;
use kvtide_core::unit::{Bytes, Pages, PoolId, VirtId};
use tokio::time::Instant;

use super::append::unknown;
use super::job::{Purpose, ReserveWork, Work};
use super::{Allocator, Gate, Hold, Packing, Progress, Step, gone};
use crate::error::AllocError;
use crate::message::{
    Begun, GateKey, Gone, Left, PageTable, Receipt, Reply, Request, ReservationId, Returned,
    SequenceId, StepId,
};
use crate::radix;

/// Whether a lease followed a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Followed {
    Before,
    Never,
}

impl Allocator {
    /// Takes back what dropped handles gave up.
    pub(super) async fn collect(&mut self) {
        while let Ok(returned) = self.returned.try_recv() {
            match returned {
                Returned::Sequence(id) => self.close(id).await,
                Returned::Reservation(id) => self.give_back_reservation(id),
                Returned::Step(id) => self.end_step(id).await,
                Returned::Gate(key) => self.open_moves(key),
                // It may have been waiting, and others behind it.
                Returned::Call => self.note_progress(),
            }
        }
    }

    pub(super) async fn reserve(
        &mut self,
        id: ReservationId,
        demand: AnyDemand,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
        me: &ActorRef<Self>,
    ) {
        if let Err(error) = demand.pages().check(&self.chain) {
            let error = AllocError::from(error);
            self.note_refused(&error);
            let _ = reply.send(Err(error));
            return;
        }
        let work = ReserveWork { id, demand: Some(demand), held: None, reply };
        let job = self.job(Work::Reserve(work), deadline);
        self.run(job, me).await;
    }

    /// Gives back a reservation's pages of some pools. Nothing changes on an error.
    pub(super) fn release(
        &mut self,
        id: ReservationId,
        pools: &[PoolId],
    ) -> Result<Left, AllocError> {
        let Some(reserved) = self.reservations.get(&id) else {
            return Err(AllocError::UnknownName(format!("reservation {} is not held", id.0)));
        };
        if let Some(beyond) = pools.iter().find(|pool| pool.index() >= self.names.len()) {
            return Err(AllocError::UnknownName(format!(
                "the chain has {} pools, none of number {}",
                self.names.len(),
                beyond.0
            )));
        }
        for &pool in pools {
            if reserved.released[pool] == Gone::Released {
                let name = &self.names[pool.index()];
                return Err(AllocError::UnknownName(format!(
                    "the reservation's pages of pool {name} were given back already"
                )));
            }
        }
        let full = self.chain.full();
        if full.is_some_and(|full| pools.contains(&full)) {
            let orphan = self.chain.windows().iter().find(|pool| {
                reserved.windows[**pool] > Pages(0)
                    && reserved.released[**pool] == Gone::Held
                    && !pools.contains(pool)
            });
            if let Some(orphan) = orphan {
                let name = &self.names[orphan.index()];
                return Err(AllocError::InvalidOperation(format!(
                    "pages of pool {name} are bound under the full pages: give both back"
                )));
            }
        }
        self.release_pools(id, pools);
        Ok(if self.reservations.contains_key(&id) { Left::Pages } else { Left::Nothing })
    }

    /// Gives back what is left of a reservation whose handle was dropped.
    pub(super) fn give_back_reservation(&mut self, id: ReservationId) {
        let Some(reserved) = self.reservations.get(&id) else { return };
        let held = |pool: &PoolId| reserved.released[*pool] == Gone::Held;
        let pools: Vec<PoolId> = self.chain.pool_ids().filter(held).collect();
        self.release_pools(id, &pools);
    }

    fn release_pools(&mut self, id: ReservationId, pools: &[PoolId]) {
        let Some(reserved) = self.reservations.get_mut(&id) else { return };
        let mut freed = Vec::new();
        // Window pages first: they are bound under full pages.
        for &pool in self.chain.windows().iter().filter(|pool| pools.contains(pool)) {
            let bare = reserved.full.len() - reserved.windows[pool].index();
            freed.extend(reserved.full[bare..].iter().map(|&virt| (pool, virt)));
            reserved.windows[pool] = Pages(0);
        }
        if let Some(full) = self.chain.full().filter(|full| pools.contains(full)) {
            freed.extend(reserved.full.drain(..).map(|virt| (full, virt)));
        }
        for &pool in self.chain.states().iter().filter(|pool| pools.contains(pool)) {
            freed.extend(std::mem::take(&mut reserved.states[pool]).into_iter().map(|v| (pool, v)));
        }
        for &pool in pools {
            reserved.released[pool] = Gone::Released;
        }
        if reserved.pages(&self.chain).is_empty() {
            self.reservations.remove(&id);
        }
        self.free(freed);
    }

    /// Opens a lease: pages held in the arena, prefixes locked in the tree, tables made.
    pub(super) async fn begin_step(
        &mut self,
        id: StepId,
        ids: Vec<SequenceId>,
        reply: Reply<Begun>,
    ) {
        let mut holds = Vec::new();
        for &sequence in &ids {
            let Some(slot) = self.sequences.get(&sequence) else {
                let _ = reply.send(Err(unknown(sequence)));
                return;
            };
            if let Err(error) = slot.sequence.can_work() {
                let _ = reply.send(Err(error.into()));
                return;
            }
            holds.extend(slot.sequence.holds(&self.chain));
        }
        // A step writes; what is being copied must not be written.
        let copied = |pool: PoolId, virt| {
            let mut pairs = self.copying.values().flat_map(|copying| &copying.pairs);
            pairs.any(|&(of, from, to)| of == pool && (from == virt || to == virt))
        };
        if holds.iter().any(|&(pool, virt)| copied(pool, virt)) {
            self.after_copies.push_back(Request::BeginStep { id, sequences: ids, reply });
            return;
        }
        if holds.iter().any(|&(pool, virt)| self.arena.is_moving(pool, virt)) {
            self.held_up.push_back(Request::BeginStep { id, sequences: ids, reply });
            return;
        }
        let lease = match self.arena.begin_lease(&holds) {
            Ok(lease) => lease,
            Err(error) => {
                let _ = reply.send(Err(AllocError::InvalidOperation(error.to_string())));
                return;
            }
        };
        let tables = ids.iter().map(|&id| (id, self.page_table(id))).collect();
        let mut locks = Vec::new();
        for &sequence in &ids {
            match self.lock_again(sequence).await {
                Ok(lock) => locks.push(self.hold(sequence, lock)),
                Err(error) => {
                    self.steps.insert(id, Step { lease, locks });
                    self.end_step(id).await;
                    let _ = reply.send(Err(error));
                    return;
                }
            }
        }
        self.steps.insert(id, Step { lease, locks });
        if reply.send(Ok(Begun { epoch: self.epoch, tables })).is_err() {
            self.end_step(id).await;
        }
    }

    /// A lease's hold on what a sequence has now.
    fn hold(&self, id: SequenceId, lock: kvtide_core::tree::Lock) -> Hold {
        let own = self.sequences.get(&id).map(|slot| slot.sequence.own());
        let own = own.unwrap_or_default().iter().map(|page| page.virt).collect();
        Hold { sequence: Some(id), own, lock }
    }

    pub(super) async fn lock_again(
        &mut self,
        id: SequenceId,
    ) -> Result<kvtide_core::tree::Lock, AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let lock = slot.sequence.take_lock();
        let (first, second) = self.radix.ask(radix::LockAgain(lock)).await.map_err(gone)?.0;
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.sequence.put_lock(first);
        }
        Ok(second)
    }

    /// Lets open leases hold what a sequence just published, where its pages still are theirs to read: leases of the
    /// sequence, and of others that had any of `pages`.
    pub(super) async fn extend_lease_locks(
        &mut self,
        id: SequenceId,
        pages: &[VirtId],
    ) -> Result<(), AllocError> {
        let steps: Vec<StepId> = self.steps.keys().copied().collect();
        for step in steps {
            let Some(found) = self.steps.get_mut(&step) else { continue };
            let mut holds = std::mem::take(&mut found.locks);
            for mut hold in std::mem::take(&mut holds) {
                let follows = hold.sequence == Some(id);
                if follows || hold.own.iter().any(|own| pages.contains(own)) {
                    let mut held = hold.lock;
                    if !follows {
                        // What it has may lie on another path by now: that stays held too.
                        let (first, second) =
                            self.radix.ask(radix::LockAgain(held)).await.map_err(gone)?.0;
                        holds.push(Hold { sequence: None, own: Vec::new(), lock: first });
                        held = second;
                    }
                    let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
                    let lock = slot.sequence.take_lock();
                    let answer = self.radix.ask(radix::LockOn { held, lock }).await;
                    let (lock, moved) = answer.map_err(gone)?.0;
                    if let Some(slot) = self.sequences.get_mut(&id) {
                        slot.sequence.put_lock(lock);
                    }
                    hold.lock = moved;
                }
                holds.push(hold);
            }
            if let Some(found) = self.steps.get_mut(&step) {
                found.locks = holds;
            }
        }
        Ok(())
    }

    /// Leaves open leases of a sequence the hold that they have, and has another follow the sequence, whose own hold has
    /// gone back: a step may still read what was given up.
    pub(super) async fn fork_lease_locks(&mut self, id: SequenceId) -> Result<(), AllocError> {
        let steps: Vec<StepId> = self.steps.keys().copied().collect();
        for step in steps {
            if self.stop_following(step, id) == Followed::Never {
                continue;
            }
            let lock = self.lock_again(id).await?;
            if let Some(found) = self.steps.get_mut(&step) {
                found.locks.push(Hold { sequence: Some(id), own: Vec::new(), lock });
            }
        }
        Ok(())
    }

    /// Has a lease's hold stay where it is, wherever its sequence goes.
    pub(super) fn stop_following(&mut self, step: StepId, id: SequenceId) -> Followed {
        let locks = self.steps.get_mut(&step).map(|step| step.locks.iter_mut());
        match locks.and_then(|mut locks| locks.find(|hold| hold.sequence == Some(id))) {
            Some(followed) => {
                followed.sequence = None;
                Followed::Before
            }
            None => Followed::Never,
        }
    }

    /// Where a sequence's pages lie now.
    fn page_table(&self, id: SequenceId) -> PageTable {
        let Some(slot) = self.sequences.get(&id) else { return PageTable::default() };
        let mut table = PageTable::default();
        let locate = |pool: PoolId, virt| self.arena.locate(pool, virt);
        if let Some(full) = self.chain.full() {
            table.full = slot.sequence.full_pages().filter_map(|virt| locate(full, virt)).collect();
        }
        for &pool in self.chain.windows() {
            let all: Vec<_> = slot.sequence.full_pages().map(|virt| locate(pool, virt)).collect();
            let present = all.iter().rev().take_while(|page| page.is_some()).count();
            let from = all.len() - present;
            let pages = all[from..].iter().copied().flatten().collect();
            table.windows.push((Pages(from as u32), pages));
        }
        for (&pool, &virt) in self.chain.states().iter().zip(slot.sequence.running()) {
            table.states.extend(locate(pool, virt));
        }
        table
    }

    /// Ends a lease: its pages may move again, and what was freed meanwhile is free.
    pub(super) async fn end_step(&mut self, id: StepId) {
        let Some(step) = self.steps.remove(&id) else { return };
        let ended = self.arena.end_lease(step.lease);
        debug_assert!(ended.is_ok(), "I6: a step ends its lease once");
        let locks = step.locks.into_iter().map(|hold| hold.lock).collect();
        let _ = self.radix.tell(radix::Unlock(locks)).send().await;
        self.note_progress();
    }

    /// Forbids moves of some pools; answered once no copy that it forbids is in flight.
    pub(super) fn close_moves(
        &mut self,
        key: GateKey,
        reason: String,
        pools: Vec<PoolId>,
        reply: Reply<()>,
    ) {
        if pools.iter().any(|&pool| self.arena.is_moving_pool(pool)) {
            // Served first once the copies in flight have landed, before anything can move again.
            self.held_up.push_back(Request::CloseMoves { key, reason, pools, reply });
            return;
        }
        match self.arena.close_gate(&pools) {
            Ok(id) => {
                self.gates.insert(key, Gate { id, reason, pools });
                if reply.send(Ok(())).is_err() {
                    self.open_moves(key);
                }
            }
            Err(error) => drop(reply.send(Err(AllocError::UnknownName(error.to_string())))),
        }
    }

    /// Opens a gate.
    pub(super) fn open_moves(&mut self, key: GateKey) {
        let Some(gate) = self.gates.remove(&key) else { return };
        let opened = self.arena.open_gate(gate.id);
        debug_assert!(opened.is_ok(), "I6: a gate is opened once");
        self.note_progress();
    }

    /// One pass of opportunistic compaction, within a budget of moved bytes.
    pub(super) async fn compact(
        &mut self,
        budget: Bytes,
        reply: Reply<Receipt>,
        me: &ActorRef<Self>,
    ) {
        if self.moving.is_some() {
            self.held_up.push_back(Request::Compact { budget, reply });
            return;
        }
        match self.arena.plan_compaction(budget) {
            Some(plan) => self.launch_compaction(plan, Purpose::Compact(reply), me).await,
            None => drop(reply.send(Ok(Receipt::default()))),
        }
    }

    /// Packs holes that a free left, when compaction is eager; says whether there was anything to pack.
    pub(super) async fn pack(&mut self, me: &ActorRef<Self>) -> bool {
        let due = std::mem::replace(&mut self.packing_due, Progress::None) == Progress::Memory;
        if !due || self.policy.packing == Packing::Lazy {
            return false;
        }
        if self.moving.is_some() {
            self.packing_due = Progress::Memory;
            return false;
        }
        let Some(plan) = self.arena.plan_packing() else { return false };
        self.launch_compaction(plan, Purpose::Pack, me).await;
        true
    }
}
