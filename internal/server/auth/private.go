package auth

import (
	"fmt"
	"io"
	"os"
)

// ReadPrivate reads a regular file of at most most bytes that only its owner and group may use. With readable, others
// may read it, and still not change it: where a secret is mounted read-only, chmod cannot work. It checks the mode of
// the file that it has opened, not that of the path, which might name another file by then.
func ReadPrivate(name string, most int64, readable bool) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular() || st.Size() > most:
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", name, most)
	}
	if err := judgeMode(name, st.Mode(), readable); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// CheckPrivate is the check of ReadPrivate for a file that others read, such as a private key. What cannot be read is
// left to them.
func CheckPrivate(name string, readable bool) error {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	return judgeMode(name, st.Mode(), readable)
}

func judgeMode(name string, of os.FileMode, readable bool) error {
	switch mode := of.Perm(); {
	case mode&0o002 != 0:
		return fmt.Errorf("%s may be changed by everybody on this machine (mode %04o): chmod o= %s", name, mode, name)
	case mode&0o007 != 0 && !readable:
		return fmt.Errorf("%s may be used by everybody on this machine (mode %04o): chmod o= %s; or set "+
			"readable-secrets, where it is mounted so that chmod cannot work and only the node sees it", name, mode, name)
	}
	return nil
}
