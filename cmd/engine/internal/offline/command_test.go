package offline

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// exit is what package main makes of a code and an error.
type exit struct {
	code int
	error
}

// execute runs a command line as package main does: 2 is the exit code of cobra's own errors.
func execute(name string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "penstock", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands(func(code int, err error) error { return &exit{code, err} })...)
	root.SetArgs(append([]string{name}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.Execute()
	code = exitNotChecked
	if e, is := errors.AsType[*exit](err); is {
		code, err = e.code, e.error
	} else if err == nil {
		code = exitClean
	}
	if err != nil {
		fmt.Fprintln(&errs, err)
	}
	return code, out.String(), errs.String()
}
