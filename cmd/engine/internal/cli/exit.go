package cli

import (
	"errors"
	"regexp"
	"strings"

	"penstock/cmd/engine/internal/client"
)

// Exit codes. They are documented in docs/reference/commands.md and may not change their meaning.
const (
	ExitOther   = 1
	ExitUsage   = 2
	ExitData    = 3
	ExitAddress = 4
	ExitForgot  = 5
	ExitMemory  = 6

	ExitUnhealthy = 10
	ExitPartial   = 11
)

// exitError is an error with the exit code that it gives the process. If err is nil, the command has already printed
// what is wrong.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// Fail returns err with the exit code that it gives the process.
func Fail(code int, err error) error { return &exitError{code, err} }

// packageNames matches the package prefixes of our errors. They help programs that embed the engine; on a command line
// the sentence alone is enough.
var packageNames = regexp.MustCompile(
	`(^|: )(?:(?:aio|aside|backup|batch|client|clog|cluster|engine|etcd|kv|meta|migrate|netproto|nsq|` +
		`peer|replicate|segment|wire): )+`)

// Sentence returns an error in one line, without the names of packages.
func Sentence(err error) string {
	return packageNames.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "$1")
}

// WithExitCode gives an error the exit code for a command that talks to a node, unless it has one.
func WithExitCode(err error) error {
	var exit *exitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, client.ErrUsage):
		return Fail(ExitUsage, err)
	}
	return Fail(ExitOther, err)
}
