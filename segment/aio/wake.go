package aio

import "sync/atomic"

// sleeper is a wakeState whose owner sleeps in a channel: the owner of a pwriteQueue or a ringQueue.
type sleeper struct {
	state  wakeState
	signal chan struct{} // one token for each change from sleeping to notified
}

func newSleeper() sleeper { return sleeper{signal: make(chan struct{}, 1)} }

// sleep waits for a Wake since the last call, unless the owner has work already, and consumes the Wake. The owner then
// looks at all its work.
func (s *sleeper) sleep(hasWork bool) {
	if !hasWork && s.state.fallAsleep() {
		<-s.signal
	}
	s.state.wakeUp()
}

// Wake implements Queue.
func (s *sleeper) Wake() {
	if s.state.notify() {
		s.signal <- struct{}{} // has room: there is one token per sleep, and the sleeper takes it
	}
}

// wakeState lets Wake and a sleeping owner meet without a lost wake-up and, while the owner is awake, without a system
// call.
//
// It is one word. Only the owner writes awake and sleeping; Wake only writes notified. Each change from sleeping to
// notified makes exactly one waker responsible for one signal (a write to the eventfd, a token in the channel).
//
//	owner                               waker
//	-----                               -----
//	A1 looks at its work: none          B1 publishes work
//	A2 CAS(awake → sleeping)            B2 old := swap(notified)
//	A3 sleeps until signal or CQE       B3 if old == sleeping: signal
//	A4 swap(awake), looks at its work
//
// All operations on the word are sequentially consistent, so every interleaving is one of these:
//   - B2 before A2: A2 finds notified and fails, so the owner does not sleep. B1 is before B2, so the look after Wait
//     returned (A4, A1) sees the work.
//   - A2 before B2: B2 finds sleeping, and B3 ends A3. It does not matter whether the signal comes before or after the
//     owner really sleeps, because eventfd and channel remember it.
//   - B1 before A1 but B2 after A4: the owner has seen the work already, and the next blocking Wait returns once
//     without a reason.
//   - A completion ends A3 between B2 and B3: A4 consumes the notification. The signal of B3 arrives later and is
//     recognized as stale (it does not end a Wait, see uringQueue.collect).
type wakeState struct{ v atomic.Int32 }

const (
	stateAwake int32 = iota
	stateSleeping
	stateNotified
)

// notify is Wake's half. It reports whether the caller must signal.
func (w *wakeState) notify() bool {
	// The load keeps the word's cache line shared while many goroutines wake an owner that was already notified.
	if w.v.Load() == stateNotified {
		return false
	}
	return w.v.Swap(stateNotified) == stateSleeping
}

// fallAsleep announces that the owner will sleep. It returns false if a wake-up is pending: then the owner must not
// sleep.
func (w *wakeState) fallAsleep() bool {
	return w.v.CompareAndSwap(stateAwake, stateSleeping)
}

// pending reports whether Wake was called since wakeUp.
func (w *wakeState) pending() bool { return w.v.Load() == stateNotified }

// wakeUp ends the sleep and consumes the notification, if there is one.
func (w *wakeState) wakeUp() { w.v.Store(stateAwake) }

// retire leaves the word notified for ever, so that no Wake after Close signals anybody.
func (w *wakeState) retire() { w.v.Store(stateNotified) }
