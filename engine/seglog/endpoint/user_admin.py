"""The users that clients make for SCRAM: DescribeUserScramCredentials, AlterUserScramCredentials.

The rules and their order are those of Kafka's ScramControlManager.
"""
from collections import Counter

from seglog.coordinators.refusals import error_of, message_of
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.users import Users
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.state.users import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    USERS_MAX,
    Credential,
    Mechanism,
    checked_user_name,
)
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ApiKey,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_NUMBERS = {mechanism.value: mechanism for mechanism in Mechanism}
_Refusal = tuple[Errors, str]


class UserAdmin:
    """The handlers of these APIs."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter,
        }

    async def describe(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        """The stored users; the operator's are nobody's business."""
        stored = self._users.stored
        times = Counter(user.name for user in request.users or ())
        results = []
        for name in times or stored:
            await context.work.step()
            row = _Described(user=name)
            if times[name] > 1:
                row.error_code = Errors.DUPLICATE_RESOURCE
                row.error_message = f"Cannot describe the same user twice in a request: {name}"
            elif name not in stored:
                row.error_code = Errors.RESOURCE_NOT_FOUND
                row.error_message = f"Attempt to describe a user credential that does not exist: {name}"
            else:
                row.credential_infos = [
                    DescribeUserScramCredentialsResponse.CredentialInfo(
                        mechanism=mechanism.value, iterations=credential.iterations)
                    for mechanism, credential in stored[name].items()
                ]
            results.append(row)
        return DescribeUserScramCredentialsResponse(error_message="", results=results)

    async def alter(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        """Each user is changed as asked, or not at all; all that are changed are durable before the answer."""
        asked: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
        times = Counter(one.name for one in asked)
        refused: dict[str, _Refusal] = {}
        due: dict[str, tuple[Mechanism, Credential | None]] = {}
        for one in asked:
            await context.work.step()
            refusal = self._refusal(one, times[one.name])
            if refusal is not None:
                refused[one.name] = refusal
                continue
            mechanism = _NUMBERS[one.mechanism]
            due[one.name] = mechanism, Credential.of_salted(
                mechanism, bytes(one.salt), bytes(one.salted_password), one.iterations,
            ) if isinstance(one, _Upsertion) else None

        def change(users: dict[str, dict[Mechanism, Credential]]) -> None:
            for name, (mechanism, made) in due.items():
                if made is None and mechanism not in users.get(name, {}):
                    refused[name] = (
                        Errors.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
                elif made is None:
                    del users[name][mechanism]
                elif name not in users and len(users) >= USERS_MAX:
                    refused[name] = (Errors.POLICY_VIOLATION, f"A log dir has at most {USERS_MAX} users")
                else:
                    users.setdefault(name, {})[mechanism] = made

        try:
            await self._users.change(change)
        except SeglogError as error:
            refused.update(dict.fromkeys(due, (error_of(error), message_of(error))))
        changed = [name for name in due if name not in refused]
        if changed:
            context.security.users_changed(context.client_host, context.principal, changed)
        return AlterUserScramCredentialsResponse(results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=name, error_code=refused[name][0] if name in refused else Errors.NONE,
                error_message=refused[name][1] if name in refused else None)
            for name in times
        ])

    def _refusal(self, one: _Deletion | _Upsertion, times: int) -> _Refusal | None:
        """`times`: how often the request has this user, with whatever mechanism."""
        if times > 1:
            return Errors.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
        if not one.name:
            return Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
        mechanism = _NUMBERS.get(one.mechanism)
        if mechanism is None:
            return Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        if self._users.is_operators(one.name):
            return Errors.UNACCEPTABLE_CREDENTIAL, "The server's operator has a user of this name"
        if isinstance(one, _Deletion):
            return None
        try:
            checked_user_name(one.name)
        except InvalidArgumentError as error:
            return Errors.UNACCEPTABLE_CREDENTIAL, error.what
        if one.iterations < ITERATIONS_MIN:
            return Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        if one.iterations > ITERATIONS_MAX:
            return Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if not 0 < len(one.salt) <= SALT_BYTES_MAX or len(one.salted_password) != mechanism.hash_bytes:
            return Errors.UNACCEPTABLE_CREDENTIAL, "Salt or salted password has a length that no client makes"
        return None
