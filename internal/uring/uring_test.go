package uring

import (
	"errors"
	"syscall"
	"testing"
)

// open opens a ring of four entries, or skips the test where the kernel refuses rings.
func open(t *testing.T, with func(uint32) (Ring, error)) Ring {
	t.Helper()
	r, err := with(4)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) {
		t.Skipf("this machine refuses io_uring: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// A full queue refuses entries, prepared entries complete with their own user data, and a neutralized entry does
// nothing.
func TestRing(t *testing.T) {
	r := open(t, OpenUnbound)
	for round := range 3 {
		for i := range 4 {
			if !r.Prepare(Entry{Op: opNop, FD: -1, UserData: uint64(10*round + i)}) {
				t.Fatalf("round %d: entry %d was refused", round, i)
			}
		}
		if r.Prepare(Entry{Op: opNop, FD: -1}) || r.Untaken() != 4 {
			t.Fatalf("round %d: a full queue took an entry, %d are untaken", round, r.Untaken())
		}
		r.Neutralize()
		if err := EnterRetry(r, 4); err != nil || r.Untaken() != 0 {
			t.Fatalf("round %d: %v, %d are untaken", round, err, r.Untaken())
		}
		for i := range 4 {
			want := uint64(10*round + i)
			if i == 3 {
				want = IgnoredData
			}
			if data, res, ok := r.Next(); data != want || res != 0 || !ok {
				t.Fatalf("round %d: completion %d is %d, %d, %t, want %d", round, i, data, res, ok, want)
			}
		}
		if _, _, ok := r.Next(); ok {
			t.Fatalf("round %d: a completion too many", round)
		}
	}
}

// refusing is a ring that answers each Enter with the next of its errors, and after the last one with nil.
type refusing struct {
	Ring
	errs []error
}

func (r *refusing) Enter(uint32) error {
	if len(r.errs) == 0 {
		return nil
	}
	err := r.errs[0]
	r.errs = r.errs[1:]
	return err
}

// EnterRetry retries "again" for a while and interruptions by signals for ever. Any other error is final.
func TestEnterRetry(t *testing.T) {
	repeat := func(err error, n int) (errs []error) {
		for range n {
			errs = append(errs, err)
		}
		return errs
	}
	for name, x := range map[string]struct {
		errs []error
		want error
	}{
		"signals":      {repeat(syscall.EINTR, 10*MaxEnterTries), nil},
		"passing":      {repeat(syscall.EAGAIN, MaxEnterTries-1), nil},
		"never passes": {repeat(syscall.EBUSY, MaxEnterTries), ErrStuck},
		"final":        {[]error{syscall.EIO, nil}, syscall.EIO},
	} {
		if err := EnterRetry(&refusing{errs: x.errs}, 1); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
}

// If a ring cannot be opened, the result is nil, and not an interface around a nil pointer: callers close what they
// got.
func TestOpenRefused(t *testing.T) {
	for name, with := range map[string]func(uint32) (Ring, error){"Open": Open, "OpenUnbound": OpenUnbound} {
		if r, err := with(1 << 31); r != nil || err == nil {
			t.Errorf("%s of too many entries: %v, %v", name, r, err)
		}
	}
}
