package logread

import "penstock/segment"

// Positions are those of the batches from From on and below Until.
type Positions struct{ From, Until segment.Position }

// Isolated returns the positions, from needed on, of what the log knows to be unreadable. They cover whole segments,
// because the device would have to be read for exact positions. They end before the batches that are in memory: the
// segment behind a damaged one may have no file yet. It does not wait for the device.
func Isolated(log *segment.Log, needed segment.Position) (all []Positions) {
	bad := log.Isolated()
	if len(bad) == 0 {
		return nil
	}
	segments := log.Segments()
	_, start, _ := log.Start()
	for i := range bad {
		from := start
		_, until, _ := log.End()
		if pos, ok := log.InMemory(bad[i].To); ok {
			until = min(until, pos)
		}
		for j := range segments {
			s := &segments[j]
			switch {
			case s.Err != nil: // its header cannot be read
			case s.Start <= bad[i].From:
				from = max(from, s.FirstPosition)
			default:
				until = min(until, s.FirstPosition)
			}
		}
		if from = max(from, needed); from < until {
			all = append(all, Positions{from, until})
		}
	}
	return all
}

// Behind returns the position behind the damage at offset at, of the batch with position pos: the next batch that can
// be read, as far as that is known.
func Behind(log *segment.Log, pos segment.Position, at segment.Offset) segment.Position {
	until := pos + 1
	for _, bad := range log.Isolated() {
		if bad.From <= at && at < bad.To {
			if next, ok := positionAt(log, bad.To); ok {
				until = next
			}
		}
	}
	return until
}
