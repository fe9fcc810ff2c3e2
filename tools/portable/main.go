// Command portable type-checks packages and their tests for other systems:
//
//	go run ./tools/portable -dir client/otel windows/386,darwin/arm64 ./...
//
// It reads the sources of all that they import, the standard library's too, and compiles nothing: go vet would first
// compile that library for each system.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("dir", ".", "a directory in the packages' module")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: portable [-dir DIR] SYSTEM/PROCESSOR,... PACKAGE...")
		os.Exit(2)
	}
	for platform := range strings.SplitSeq(flag.Arg(0), ",") {
		if err := check(*dir, platform, flag.Args()[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "portable: %s: %v\n", platform, err)
			os.Exit(1)
		}
	}
}

// check prints the errors of the packages on one platform, and returns an error if there are any.
func check(dir, platform string, names []string) error {
	system, processor, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("want a system and a processor, as in windows/386")
	}
	found, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo,
		Dir: dir, Tests: true, Env: append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0"),
	}, names...)
	if err != nil {
		return err
	}
	if n := packages.PrintErrors(found); n > 0 {
		return fmt.Errorf("%d errors", n)
	}
	return nil
}
