package client

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Environment variables of the commands. None has the name of a setting of serve: PENSTOCK_HTTP_ADDRESS says where a
// node listens, and nothing about whom a command asks.
const (
	EnvAddress = "PENSTOCK_SERVER"
	EnvNodes   = "PENSTOCK_NODES" // of the commands that speak the native protocol
	EnvToken   = "PENSTOCK_TOKEN"
)

const (
	// DefaultAddress is where a node listens for HTTP by default.
	DefaultAddress = "127.0.0.1:4151"

	// maxTokenBytes bounds a token file, so that a wrong --token-file is not sent to a node.
	maxTokenBytes = 8 << 10
)

// Flags say which node to talk to, how to trust it, and how to be trusted by it. All commands that talk to a running
// node have these flags, except that those that speak the native protocol name nodes in another way.
type Flags struct {
	Address             string // URL or HOST:PORT
	CAFile              string // PEM; empty: the certificate authorities of this machine
	CertFile, KeyFile   string // PEM; empty: the client shows no certificate
	SkipVerify          bool   // accept any certificate: the other end may be anybody
	MinVersion          string // of TLS: "1.3", also if it is empty, or "1.2"
	TokenFile           string // empty: the token is in EnvToken, or there is none
	AllowPlaintextToken bool   // send the token without TLS to another machine
}

// Add adds the flags to a set. aliases are other names of --http-address from earlier versions; they work, and help
// does not show them.
func (f *Flags) Add(set *pflag.FlagSet, aliases ...string) {
	set.StringVar(&f.Address, "http-address", cmp.Or(os.Getenv(EnvAddress), DefaultAddress),
		"`URL` or HOST:PORT of a node's HTTP API (or "+EnvAddress+")")
	for _, name := range aliases {
		set.StringVar(&f.Address, name, f.Address, "the same as --http-address")
		Hide(set, name)
	}
	f.AddTrust(set)
}

// AddTrust adds the flags that do not say which node to talk to.
func (f *Flags) AddTrust(set *pflag.FlagSet) {
	set.StringVar(&f.CAFile, "tls-ca", "",
		"PEM `FILE` with the certificate authorities to trust; empty means this machine's")
	set.StringVar(&f.CertFile, "tls-cert", "", "PEM `FILE` with the certificate to show to the node")
	set.StringVar(&f.KeyFile, "tls-key", "", "PEM `FILE` with the private key for --tls-cert")
	set.BoolVar(&f.SkipVerify, "tls-insecure-skip-verify", false,
		"accept every certificate: whoever intercepts the connection can read and change all of it")
	set.StringVar(&f.MinVersion, "tls-min-version", "1.3", "lowest `VERSION` of TLS to speak: 1.3 or 1.2")
	set.StringVar(&f.TokenFile, "token-file", "",
		"`FILE` with the token to log in with (or "+EnvToken+", the token itself)")
	set.BoolVar(&f.AllowPlaintextToken, "allow-plaintext-token", false,
		"send the token without TLS to another machine: whoever listens on the way can use it")
}

// Hide removes a flag from help and completion.
func Hide(set *pflag.FlagSet, name string) {
	if err := set.MarkHidden(name); err != nil {
		panic("BUG: " + err.Error())
	}
}

// ErrUsage marks errors whose cause is in the command line or the environment.
var ErrUsage = errors.New("usage")

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == ErrUsage }
func (e usageError) Unwrap() error      { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// parseAddress reads http://HOST[:PORT], https://HOST[:PORT] or HOST:PORT, which means http.
func parseAddress(address string) (*url.URL, error) {
	text := address
	if !strings.Contains(text, "://") {
		if _, _, err := net.SplitHostPort(text); err != nil {
			return nil, usage("--http-address %s is neither a URL, such as https://db1:4152, nor HOST:PORT", address)
		}
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, usage("--http-address %s is neither a URL, such as https://db1:4152, nor HOST:PORT", address)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, usage("--http-address %s has the scheme %s; a node speaks http or https", address, u.Scheme)
	case u.User != nil:
		return nil, usage("--http-address names a user; a node asks for a token: see --token-file")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// UsesTLS says whether connections of the NSQ protocol to the same node should use TLS: the address is an https URL, or
// a flag about TLS was given.
func (f *Flags) UsesTLS() bool {
	return strings.HasPrefix(f.Address, "https://") || f.CAFile != "" || f.CertFile != "" || f.KeyFile != "" ||
		f.SkipVerify
}

// TLS returns the client's part of TLS. The server's name is not set.
func (f *Flags) TLS() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: f.SkipVerify}
	switch f.MinVersion {
	case "", "1.3":
	case "1.2":
		c.MinVersion = tls.VersionTLS12
	default:
		return nil, usage("--tls-min-version is %q; it must be 1.3 or 1.2: older ones are broken", f.MinVersion)
	}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, usage("the file of --tls-ca cannot be read: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("the file of --tls-ca, %s, holds no PEM certificate", f.CAFile)
		}
	}
	if (f.CertFile == "") != (f.KeyFile == "") {
		return nil, usage("--tls-cert and --tls-key belong together: only one of them was given")
	}
	if f.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, usage("the certificate of --tls-cert cannot be used: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Token returns the secret to log in with, or "".
func (f *Flags) Token() (string, error) {
	token := os.Getenv(EnvToken)
	if f.TokenFile != "" {
		file, err := os.Open(f.TokenFile)
		if err != nil {
			return "", usage("the file of --token-file cannot be read: %w", err)
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxTokenBytes+1))
		if err != nil {
			return "", usage("the file of --token-file cannot be read: %w", err)
		}
		if token = strings.TrimSpace(string(data)); token == "" || len(data) > maxTokenBytes {
			return "", usage("the file of --token-file, %s, holds no token of at most %d bytes", f.TokenFile, maxTokenBytes)
		}
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", usage("the token has a character that cannot be sent: it must be printable ASCII without spaces")
	}
	return token, nil
}

// CheckPlaintext refuses to send a token in clear to another machine. host is the name or the address of the node, and
// useTLS is what the command line has to say for a connection with TLS.
func (f *Flags) CheckPlaintext(token, host, useTLS string) error {
	if token == "" || f.AllowPlaintextToken || local(host) {
		return nil
	}
	return usage("the token was not sent, because the connection to %s has no TLS: say %s, or --allow-plaintext-token "+
		"where nobody can listen on the way", host, useTLS)
}

// local says whether a host is this machine, so that nothing that is sent there crosses a network.
func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}
