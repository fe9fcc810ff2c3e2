package aio

// Guard is guard.
func Guard(path string, fn func() error) error { return guard(path, fn) }

// MappedBytes are the bytes that m maps.
func MappedBytes(m Mapping) []byte { return m.(*mapping).mem }
