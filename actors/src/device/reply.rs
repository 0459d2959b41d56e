//! How a command's outcome comes back.

use std::fmt;

use tokio::sync::oneshot;

/// The worker's thread is gone, and with it what was in flight: whether it ran is unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the device worker is gone")]
pub struct DeviceLost;

/// Takes one outcome; dropped without one, it says [`DeviceLost`], so nobody waits for ever.
pub struct Reply<T>(Option<Way<T>>);

enum Way<T> {
    Channel(oneshot::Sender<Result<T, DeviceLost>>),
    Call(Box<dyn FnOnce(Result<T, DeviceLost>) + Send>),
}

impl<T> Reply<T> {
    /// A reply that is awaited. Nobody need listen.
    #[must_use]
    pub fn channel() -> (Self, oneshot::Receiver<Result<T, DeviceLost>>) {
        let (sender, receiver) = oneshot::channel();
        (Reply(Some(Way::Channel(sender))), receiver)
    }

    /// A reply that calls `call` exactly once, on the worker's thread: it must neither block nor panic.
    #[must_use]
    pub fn call(call: impl FnOnce(Result<T, DeviceLost>) + Send + 'static) -> Self {
        Reply(Some(Way::Call(Box::new(call))))
    }

    /// A reply that nobody wants.
    #[must_use]
    pub fn ignore() -> Self {
        Reply(None)
    }

    /// Delivers the outcome.
    pub fn send(mut self, outcome: T) {
        self.deliver(Ok(outcome));
    }

    fn deliver(&mut self, outcome: Result<T, DeviceLost>) {
        match self.0.take() {
            // An asker that has gone away does not want it.
            Some(Way::Channel(sender)) => drop(sender.send(outcome)),
            Some(Way::Call(call)) => call(outcome),
            None => {}
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.deliver(Err(DeviceLost));
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}
