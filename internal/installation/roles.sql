-- Written by bctl deploy: the roles and the database of the index. Run it as the server's superuser:
--
--   psql -X -v ON_ERROR_STOP=1 -d postgres -f roles.sql
--
-- You can run it repeatedly and at any time: before or after bctl init, after an upgrade, after a rotation. bctl init and
-- bctl migrate, run as {{.admin}}, set the privileges of tables themselves, so you need not run it after these.
--
-- It ends the sessions of certificates that are no longer accepted: run it again after bctl deploy retire, once the
-- server has read its new pg_ident.conf.

\set ON_ERROR_STOP on

-- No role has a password, and only {{.admin}} owns objects.
DO $roles$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[{{literal .admin}}, {{literal .committer}}, {{literal .walker}}, {{literal .reader}}, {{literal .operator}}, {{literal .pruner}}, {{literal .scrubber}}, {{literal .restorer}}, {{literal .monitor}}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I', wanted);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD NULL', wanted);
    END LOOP;
END $roles$;

SELECT format('CREATE DATABASE %I OWNER %I TEMPLATE template0 ENCODING ''UTF8''', {{literal .Database}}, {{literal .admin}})
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = {{literal .Database}}) \gexec

ALTER DATABASE {{ident .Database}} OWNER TO {{ident .admin}};
ALTER DATABASE {{ident .Database}} SET {{.Setting}} = {{literal .Name}};
REVOKE ALL ON DATABASE {{ident .Database}} FROM PUBLIC, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .pruner}}, {{ident .scrubber}}, {{ident .restorer}}, {{ident .monitor}};
GRANT CONNECT ON DATABASE {{ident .Database}} TO {{ident .committer}}, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .pruner}}, {{ident .scrubber}}, {{ident .restorer}}, {{ident .monitor}};
-- Committers write in bulk, through temporary tables.
GRANT TEMPORARY ON DATABASE {{ident .Database}} TO {{ident .committer}};

\connect {{ident .Database}}

BEGIN;

ALTER SCHEMA public OWNER TO {{ident .admin}};
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO {{ident .committer}}, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .pruner}}, {{ident .scrubber}}, {{ident .restorer}}, {{ident .monitor}};

-- {{.admin}} becomes the owner of an index that another role created.
DO $owner$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
        AND c.relkind IN ('r', 'p') AND pg_get_userbyid(c.relowner) <> {{literal .admin}} LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', found.name, {{literal .admin}});
    END LOOP;
    FOR found IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
        AND pg_get_userbyid(p.proowner) <> {{literal .admin}} LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', found.name, {{literal .admin}});
    END LOOP;
END $owner$;

-- Functions with which any role that can connect could do more than read: advisory locks, which would keep committers
-- from claiming work, and large objects and messages in the WAL, which use space.
DO $functions$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT p.oid::regprocedure AS name, p.proname LIKE '%advisory%' AS lock FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND (p.proname LIKE 'pg\_%advisory%'
            OR p.proname IN ('lo_creat', 'lo_create', 'lo_from_bytea', 'pg_logical_emit_message')) LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found.name);
        IF found.lock THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I, %I', found.name, {{literal .committer}}, {{literal .admin}});
        END IF;
    END LOOP;
END $functions$;

COMMIT;

-- The privileges in the tables, if they exist and have the schema of this version.
SELECT to_regclass('public.goose_db_version') IS NOT NULL AS made \gset
\if :made
SELECT ({{.Version}}) = {{.Schema}} AS current \gset
\if :current
BEGIN;
{{.Grants}}
COMMIT;
\else
\echo 'The schema of the index is of another version of bctl: run bctl migrate, or use that version.'
\endif
\endif

-- End the sessions of certificates that are no longer accepted.
SELECT pg_terminate_backend(pid) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
WHERE usename IN ({{literal .admin}}, {{literal .committer}}, {{literal .walker}}, {{literal .reader}}, {{literal .operator}}, {{literal .pruner}}, {{literal .scrubber}}, {{literal .restorer}}, {{literal .monitor}})
    AND client_dn <> ALL (ARRAY[{{range $i, $name := .Identities}}{{if $i}}, {{end}}left({{literal (print "/CN=" $name)}}, 63){{end}}]::text[]);
