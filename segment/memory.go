package segment

// Memory is the part of a log that is in memory. It is for callers that hold a lock that others need, and so may not
// wait for the device. ErrNotInMemory says that a batch is only in a segment. The methods take the log's mu, which
// nobody holds while waiting for the device.
type Memory struct{ log *Log }

// Memory returns the log's part in memory. Each call of a method sees the part that is in memory at that time.
func (l *Log) Memory() Memory { return Memory{l} }

// SeekPosition is Log.SeekPosition, but never reads from the device.
func (m Memory) SeekPosition(pos Position) (Offset, error) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	return m.log.seekMemory(pos)
}

// View is Log.View, but never reads from the device. The run is one batch, however many bytes the caller has room for.
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

// Where is Log.Where, which never reads from the device.
func (m Memory) Where(at Offset) (State, error) { return m.log.Where(at) }
