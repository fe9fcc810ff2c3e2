package settings

import (
	"errors"
	"fmt"
	"strings"

	"penstock/internal/server/auth"
)

// maxSecretFileBytes bounds a file with a password or with addresses.
const maxSecretFileBytes = 64 << 10

// exposed is the error of a secret in a flag.
func exposed(s *Setting) error {
	return fmt.Errorf("everybody on this machine can read the secret in the flag --%s, for example with ps: put it into "+
		"a file for --%s-file, into the environment variable %s, or into the file of --config", s.Name, s.Name, s.env())
}

// ReadSecretFiles reads the files of those secrets that have one, into EtcdPassword and AuthServers.
func (n *Options) ReadSecretFiles() (err error) {
	c, o := &n.Cluster, &n.Offers
	if c.EtcdPasswordFile != "" {
		if c.EtcdPassword != "" {
			return errors.New("etcd-password and etcd-password-file are both set: give only one of them")
		}
		if c.EtcdPassword, err = n.EtcdPasswordNow(); err != nil {
			return err
		}
	}
	o.AuthServers, err = n.AuthServers()
	return err
}

// EtcdPasswordNow returns what is in the file of the password now.
func (n *Options) EtcdPasswordNow() (string, error) {
	name := n.Cluster.EtcdPasswordFile
	lines, err := n.secretLines(name, "etcd-password-file")
	switch {
	case err != nil:
		return "", err
	case len(lines) != 1:
		return "", fmt.Errorf("the file %s of etcd-password-file has %d lines, and one is the password", name, len(lines))
	}
	return lines[0], nil
}

// AuthServers returns the addresses of the auth servers: those of the setting, and those that are in the file now.
func (n *Options) AuthServers() (all []string, err error) {
	o := &n.Offers
	if o.authAddresses != "" {
		all = strings.Split(o.authAddresses, ",")
	}
	if o.AuthFile == "" {
		return all, nil
	}
	lines, err := n.secretLines(o.AuthFile, "auth-http-address-file")
	switch {
	case err != nil:
		return nil, err
	case len(lines) == 0:
		return nil, fmt.Errorf("the file %s of auth-http-address-file is empty, and nobody could log in", o.AuthFile)
	}
	return append(all, lines...), nil
}

// secretLines returns the lines of a file that only its owner and group may read, see readable-secrets.
func (n *Options) secretLines(name, setting string) ([]string, error) {
	text, err := auth.ReadPrivate(name, maxSecretFileBytes, n.NSQ.Auth.ReadableFiles)
	if err != nil {
		return nil, fmt.Errorf("the file of %s cannot be used: %w", setting, err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
