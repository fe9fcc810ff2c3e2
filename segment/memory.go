package segment

// Memory is the part of a log that is in memory, for callers that may not wait for the device: they hold a lock that
// others need. ErrNotInMemory says that a batch is in a segment only. Its methods take the log's lock, with which
// nobody waits for the device.
type Memory struct{ log *Log }

// Memory returns the part of the log that is in memory at each call.
func (l *Log) Memory() Memory { return Memory{l} }

// SeekPosition is Log.SeekPosition without the device.
func (m Memory) SeekPosition(pos Position) (Offset, error) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	return m.log.seekMemory(pos)
}

// View is Log.View without the device. The run is one batch, however many bytes the caller has room for.
func (m Memory) View(v *View, at Offset, _ int) error {
	if v.buf != nil || v.seg != nil {
		panic("BUG: segment: View was not released")
	}
	l := m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.within(at); err != nil {
		return err
	}
	if l.tail.n == 0 || at < l.tail.offset(0) {
		return ErrNotInMemory
	}
	return l.viewTail(v, at)
}

// Where is Log.Where, which needs no device.
func (m Memory) Where(at Offset) (State, error) { return m.log.Where(at) }
