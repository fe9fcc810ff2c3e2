package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecretFileBytes bounds a file with a password or with addresses.
const maxSecretFileBytes = 64 << 10

// exposed is the error of a secret in a flag.
func exposed(s *setting) error {
	return fmt.Errorf("everybody on this machine can read the secret in the flag --%s, for example with ps: put it into "+
		"a file for --%s-file, into the environment variable %s, or into the file of --config", s.name, s.name, s.env())
}

// readSecretFiles reads the files of those secrets that have one.
func (n *node) readSecretFiles() error {
	c, o := &n.cluster, &n.offers
	if name := c.etcdPasswordFile; name != "" {
		if c.etcdPassword != "" {
			return errors.New("etcd-password and etcd-password-file are both set: give only one of them")
		}
		lines, err := secretLines(name, "etcd-password-file")
		if err != nil {
			return err
		}
		if len(lines) != 1 {
			return fmt.Errorf("the file %s of etcd-password-file has %d lines, and one is the password", name, len(lines))
		}
		c.etcdPassword = lines[0]
	}
	if name := o.authFile; name != "" {
		lines, err := secretLines(name, "auth-http-address-file")
		if err != nil {
			return err
		}
		if len(lines) == 0 {
			return fmt.Errorf("the file %s of auth-http-address-file is empty, and nobody could log in", name)
		}
		o.authAddresses = strings.TrimPrefix(o.authAddresses+","+strings.Join(lines, ","), ",")
	}
	return nil
}

// secretLines returns the lines of a file that only its owner and group may read. It checks the file that it has
// opened, not the path, which might name another file by then.
func secretLines(name, setting string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the file of %s cannot be read: %w", setting, err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("the file %s of %s may be used by everybody on this machine (mode %04o): chmod o= %s", name,
			setting, st.Mode().Perm(), name)
	case err == nil && (!st.Mode().IsRegular() || st.Size() > maxSecretFileBytes):
		return nil, fmt.Errorf("%s of %s is not a regular file of at most %d bytes", name, setting, maxSecretFileBytes)
	}
	text, readErr := io.ReadAll(io.LimitReader(f, maxSecretFileBytes))
	if err = cmp.Or(err, readErr); err != nil {
		return nil, fmt.Errorf("the file of %s cannot be read: %w", setting, err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
