package delivery

import (
	"errors"

	"penstock/batch"
	"penstock/segment"
)

// In a busy simulation something can be delivered most of the time: somebody ends what keeps the channel from it, and
// consumers of tags, of single partitions and with a ready count of 1 come again and again. Otherwise most of the
// events meet a channel in which nothing goes on.

// number is the number of the i-th partition of the channel. In a busy simulation the topic's first one is elsewhere.
func (s *sim) number(i int) uint32 {
	if s.busy {
		return uint32(3*i + 1)
	}
	return uint32(3 * i)
}

// work is what happens in a busy simulation between other events.
func (s *sim) work(p *simPart) {
	switch s.next() % 12 {
	case 0:
		s.wake()
	case 1:
		s.finish(p)
	case 2, 3:
		s.gaps(p)
	case 4, 5:
		s.requeue(p)
	default:
		for range 1 + s.next()%5 {
			s.pump(s.pickPart())
		}
	}
}

// wake ends what keeps everything from being delivered.
func (s *sim) wake() {
	switch {
	case s.paused:
		s.paused = false
		s.step(Event{Kind: EvPause})
	case s.skipped:
		s.skip(false)
	case len(s.clients) > 4:
		s.unsubscribe(s.clients[0])
	case s.calm:
		s.newClient()
	case s.settings.MaxAttempts != 0 && s.next()%2 == 0:
		for _, p := range s.parts {
			s.take()
			s.committed(p, s.c.LastTake(p.number))
			s.moveDead(p, 1<<20)
		}
	default:
		// Without one, for tag 1, for tag 2, for a partition, each with time or with little.
		kinds := []int{1, 2, 10, 11, 101, 122, 218, 251}
		s.subscribe(1+s.next()%4*5, kinds[s.next()%len(kinds)])
	}
}

// gaps finishes some of the messages in flight and requeues others, so that those in between have gaps around them.
func (s *sim) gaps(p *simPart) {
	s.publish(p)
	for range 6 + s.next()%16 {
		if s.next()%2 == 0 {
			s.requeue(p)
		} else if id, owner, ok := s.pickFlight(p); ok {
			s.finishOne(p, id, owner)
		}
		s.pump(p)
	}
}

// actOnEarlier lets a consumer finish, requeue or touch a delivery of the message that it had before the one in flight.
func (s *sim) actOnEarlier(p *simPart, id segment.MsgID, owner ClientID) {
	ev := Event{
		Kind: []EventKind{EvFinish, EvRequeue, EvTouch}[s.next()%3], Client: owner, ID: batch.MakeID(p.number, id),
		Number: p.numbers[id] - 1,
	}
	if ev.Number == 0 {
		return // this is the first delivery to the consumer
	}
	if err := s.step(ev).Err; !errors.Is(err, ErrNotInFlight) {
		s.t.Fatalf("delivery %d of message %d is in flight, and delivery %d is answered: %v",
			p.numbers[id], id, ev.Number, err)
	}
}
