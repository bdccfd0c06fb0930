// Package fleet runs the bctl program as its users do: as processes, with real
// servers. It is for the tests in e2e.
//
//	repo := fleet.NewRepo(t)                      // bctl init, everything on this machine
//	repo.Must("backup", tree)                     // fails the test unless the exit status is 0
//	running := repo.Start("backup", tree)         // running.Kill(), running.Signal(syscall.SIGINT)
//
//	f := fleet.New(t, fleet.Options{})            // NATS, Postgres, a directory as store, and
//	                                              // 2 walkers, 2 readers, 2 committers
//	backup, id := f.StartBackup(tree)
//	fleet.Await(t, "a settled task", func() bool { return f.Index.Work().TasksSettled > 0 })
//	f.Walkers[0].Kill()
//	f.Walkers[0].Restart()
//
//	f.Filer("nas1", "--site", "vienna")           // bctl filer add
//	f.Shard("nas1", tree)                         // bctl shard add
//	f.Readers[0].Postgres.Cut()                   // a partition, with Options.Links
//	f.Readers[0].Heal()
//
// The program is built once per test binary, with the race detector if the tests have it. A race
// that it finds ends the process, and fails the test.
//
// The package checks the index with SQL of its own, and the store by its files, and so
// independently of bctl's code.
package fleet
